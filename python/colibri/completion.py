"""Chat completions in the shape of the OpenAI interface: dictionaries in, dictionaries out.

Owns the mapping between those dictionaries and `Stream`. What must hold: the streamed deltas joined equal the
message of the unstreamed answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any, Final

from colibri.generation import Stream
from colibri.results import Result

# Kind of a chunk -> field of the message. Calls are sent when they are whole.
_FIELDS: Final = {"text": "content", "reasoning": "reasoning_content"}


def completion(stream: Stream, model: str) -> dict[str, Any]:
    """Runs a stream to its end and returns a `chat.completion`."""
    result = stream.finish()
    message: dict[str, Any] = {"role": "assistant", "content": result.text}
    if result.reasoning:
        message["reasoning_content"] = result.reasoning
    if result.tool_calls:
        message["tool_calls"] = list(result.tool_calls)
        message["content"] = result.text or None
    return {
        **_envelope("chat.completion", model),
        "choices": [{"index": 0, "message": message, "finish_reason": result.finish_reason}],
        "usage": _usage(result),
    }


def completion_chunks(stream: Stream, model: str) -> Iterator[dict[str, Any]]:
    """Yields `chat.completion.chunk` dictionaries; the last one carries finish reason and usage."""
    envelope = _envelope("chat.completion.chunk", model)

    def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        return {**envelope, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}

    with stream:
        yield chunk({"role": "assistant", "content": ""})
        for piece in stream:
            if piece.text and piece.kind in _FIELDS:
                yield chunk({_FIELDS[piece.kind]: piece.text})
        calls = [{"index": index, **call} for index, call in enumerate(stream.result.tool_calls)]
        if calls:
            yield chunk({"tool_calls": calls})
        yield {**chunk({}, stream.result.finish_reason), "usage": _usage(stream.result)}


def _envelope(kind: str, model: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{os.urandom(12).hex()}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
    }


def _usage(result: Result) -> dict[str, Any]:
    stats = result.stats
    return {
        "prompt_tokens": stats.prompt_tokens,
        "completion_tokens": stats.completion_tokens,
        "total_tokens": stats.prompt_tokens + stats.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": stats.cached_tokens},
    }
