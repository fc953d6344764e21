"""Chat completions in the shape of the OpenAI interface: dictionaries in, dictionaries out.

Owns the mapping between those dictionaries and `Stream`, and the meaning of `response_format`. Refuses
formats that are not known. What must hold: the streamed deltas joined equal the message of the unstreamed
answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from colibri.errors import error, invalid_value
from colibri.generation import Stream
from colibri.grammar import Grammar
from colibri.request import GenerationOptions
from colibri.results import Result
from colibri.sampling import LIMITS

# Kind of a chunk -> field of the message. Calls are sent when they are whole.
_FIELDS: Final = {"text": "content", "reasoning": "reasoning_content"}


_FORMATS: Final = ("text", "json_object", "json_schema")
"""The types of `response_format`."""


def completion_options(
    options: GenerationOptions, response_format: object, max_completion_tokens: int | None
) -> GenerationOptions:
    """The options of a completion in the words of `Model.generate`.

    Args:
        options: what is given in those words already.
        response_format: see `Model.create_chat_completion`.
        max_completion_tokens: the newer name of `max_tokens`.

    Raises:
        InvalidValue: a value is malformed, or contradicts another one.
        GrammarError: the schema asks for what cannot be enforced.
    """
    made: dict[str, Any] = dict(options)
    if max_completion_tokens is not None:
        most = LIMITS["max_tokens"].check("max_completion_tokens", max_completion_tokens)
        if made.get("max_tokens") not in (None, most):
            raise error(
                "invalid_value",
                f"max_tokens is {made['max_tokens']} and max_completion_tokens is {most}",
                "they are two names of one thing",
                "leave one of them out",
            )
        made["max_tokens"] = most
    # A model writes white space where it is used to it; a reader of JSON does not mind.
    grammar = _format_grammar(response_format, options.get("json_whitespace", "flexible"))
    if grammar is None:
        return cast("GenerationOptions", made)
    for name in ("grammar", "tools"):
        if made.get(name) is not None and (name == "grammar" or made.get("tool_choice") != "none"):
            raise error(
                "invalid_value",
                f"both response_format and {name} are given",
                "each says what the whole answer may be",
                'leave one of them out, or pass tool_choice="none" with tools that are not to be called',
            )
    return cast("GenerationOptions", {**made, "grammar": grammar})


def _format_grammar(value: object, whitespace: str) -> Grammar | None:
    """The grammar of a `response_format`; None where the answer is free."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        # The OpenAI client takes a class of pydantic, too.
        if callable(getattr(value, "model_json_schema", None)):
            return Grammar.from_json_schema(value, whitespace=whitespace)
        raise invalid_value("response_format", value, "a mapping with a type, or a class of pydantic")
    kind = value.get("type")
    if kind not in _FORMATS:
        raise invalid_value("response_format.type", kind, f"one of {', '.join(map(repr, _FORMATS))}")
    if kind == "text":
        return None
    if kind == "json_object":
        # A schema beside the type is what llama.cpp takes.
        schema = value.get("schema")
        return Grammar.from_json_schema(
            {"type": "object"} if schema is None else schema, whitespace=whitespace
        )
    wrapper = value.get("json_schema")
    if not isinstance(wrapper, Mapping) or not isinstance(wrapper.get("schema"), (Mapping, bool)):
        raise error(
            "invalid_value",
            "response_format has no schema",
            "with the type json_schema its json_schema must be a mapping, and hold the schema as `schema`",
            'pass {"type": "json_schema", "json_schema": {"name": "answer", "schema": {...}}}',
        )
    strict = wrapper.get("strict")
    if strict not in (None, True, False):
        raise invalid_value("response_format.json_schema.strict", strict, "True or False")
    return Grammar.from_json_schema(wrapper["schema"], lenient=strict is False, whitespace=whitespace)


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
