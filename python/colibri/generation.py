"""The token loop: a prompt in, chunks out.

Owns prefix reuse, the order of steps of one generation, and the statistics. Refuses prompts that are longer
than the context. What must hold: the model's lock is held from the first chunk to the last and released on
every way out, letting go of the stream included; the stream joined equals the result's text; an end token
ends every generation, whatever way the prompt came.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Self

from colibri.assembly import TextAssembler
from colibri.closing import Closing
from colibri.decoding import Decoder
from colibri.engine import CancelToken, Engine, EngineSession, Watcher, watch
from colibri.errors import ColibriError, error
from colibri.guide import Guide
from colibri.request import Request, too_long
from colibri.results import Chunk, DraftStat, FinishReason, Limit, Result, Stats
from colibri.tokenizer import Tokenizer
from colibri.tools import CALL_OPENS


class KvCache:
    """A lazily created native session, dropped after an error that left it undefined."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._session: EngineSession | None = None

    def session(self) -> EngineSession:
        """The session, created on first use."""
        if self._session is None:
            self._session = self._engine.session()
        return self._session

    def drop(self) -> None:
        """Lets go of the session and its memory."""
        self._session = None

    def __len__(self) -> int:
        return 0 if self._session is None else len(self._session)


class Stream(Iterator[Chunk], Closing):
    """The chunks of one generation, and its `result` when they are used up.

    Closing it, leaving its `with` block or letting go of it stops the generation and frees the model for the
    next one.
    """

    def __init__(
        self,
        engine: Engine,
        cache: KvCache,
        request: Request,
        tokenizer: Tokenizer | None,
        on_finish: Callable[[Result], None] | None = None,
    ) -> None:
        if len(request.prompt) > engine.plan.context:
            raise too_long(len(request.prompt), engine)
        self._generation = _Generation(engine, cache, request, tokenizer, on_finish)
        # What runs must not lead back to this object: dropping it then ends the generation at once.
        self._chunks = self._generation.run()

    @property
    def result(self) -> Result:
        """The finished generation; a `ValueError` while chunks are outstanding."""
        if self._generation.result is None:
            raise ValueError("the stream is not finished")
        return self._generation.result

    def cancel_token(self) -> CancelToken:
        """A token that stops this stream from another thread; call it before the first chunk."""
        token = CancelToken()
        self._generation.add_cancel_token(token)
        return token

    def finish(self) -> Result:
        """Runs to the end, discarding the chunks, and returns the result."""
        for _ in self._chunks:
            pass
        return self.result

    def close(self) -> None:
        """Stops the generation; what has been generated becomes the result."""
        self._chunks.close()

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def __iter__(self) -> Self:
        return self


class _Generation:
    """The state of one generation and the loop that moves it on."""

    def __init__(
        self,
        engine: Engine,
        cache: KvCache,
        request: Request,
        tokenizer: Tokenizer | None,
        on_finish: Callable[[Result], None] | None,
    ) -> None:
        self._engine = engine
        self._cache = cache
        self._request = request
        self._text = _assembler(request, tokenizer)
        self._guide = _guide(engine, request, tokenizer)
        self._decoder: Decoder | None = None
        self._on_finish = on_finish
        # What this generation wrote, and the whole answer where it continues one.
        self.result: Result | None = None
        self._whole: Result | None = None
        self._ids: list[int] = []
        self._cached = 0
        self._reason: FinishReason = "cancelled"
        self._stop_token: int | None = None
        self._limit: Limit | None = None
        self._calls: tuple[dict[str, Any], ...] = ()
        self._calls_read = False
        self._clock = _Clock()

    def add_cancel_token(self, token: CancelToken) -> None:
        """Has another token stop this generation; it must not have begun."""
        self._request = dataclasses.replace(self._request, cancel=(*self._request.cancel, token))

    def run(self) -> Generator[Chunk, None, None]:
        """Takes the model, runs, and gives it back whatever happens."""
        request = self._request
        # The clock of `timeout` starts here: it covers the wait for the model.
        watcher = watch(request.cancel, request.timeout, request.on_progress)
        given_up = self._engine.acquire(request.wait, request.timeout, request.cancel)
        before = self._engine.counters()
        if given_up is not None:
            self._reason = given_up
            self._conclude(before)
            return
        try:
            yield from self._steps(self._cache.session(), watcher)
        except GeneratorExit:
            # The consumer has enough: what there is becomes the result.
            self._conclude(before)
            raise
        except ColibriError:
            self._cache.drop()
            raise
        else:
            self._conclude(before)
        finally:
            self._engine.release()
            if self._whole is not None and self._on_finish is not None:
                self._on_finish(self._whole)

    def _steps(self, session: EngineSession, watcher: Watcher) -> Iterator[Chunk]:
        """Prefill, then token after token. `_reason` stays `cancelled` until another end is reached."""
        request, clock, text, guide = self._request, self._clock, self._text, self._guide
        total = len(request.prompt)
        self._cached = _reuse(session, request.prompt)
        clock.start()
        yield from clock.paused(Chunk("progress", done=self._cached, total=total))
        decoder = self._decoder = Decoder(
            session, request.prompt, request.params, request.logits_processors, guide, watcher
        )
        if not decoder.prefill(self._cached):
            self._reason = watcher.stopped or "cancelled"
            return
        clock.mark_prefill()
        yield from clock.paused(Chunk("progress", done=total, total=total))
        most, room = request.params.max_tokens or 1, session.capacity - total + 1
        while True:
            token, logprob = decoder.choose()
            clock.mark_token()
            if token in request.stop_ids:
                self._reason, self._stop_token = "stop", token
                break
            self._ids.append(token)
            decoder.commit(token)
            kind, piece, stopped = text.push(token)
            yield from clock.paused(Chunk(kind, piece, token, logprob))
            if stopped or (guide is not None and guide.finished):
                self._reason = "stop"
                break
            if len(self._ids) >= min(most, room):
                self._reason, self._limit = "length", "max_tokens" if most <= room else "context"
                break
            if not decoder.advance():
                self._reason = watcher.stopped or "cancelled"
                break
        yield from self._rest()

    def _rest(self) -> Iterator[Chunk]:
        """What is held back at the end; calls are read, and what turns out to be none is text."""
        text, tools = self._text, self._request.tools
        for kind, piece in text.finish():
            yield from self._clock.paused(Chunk(kind, piece))
        written = text.joined("tool_call")
        if tools is None or not written or self._calls_read:
            return
        self._calls_read = True
        calls, left = tools.parse(written)
        before = self._request.continues
        self._calls = tuple(calls[0 if before is None else len(before.tool_calls) :])
        if calls and self._reason == "stop":
            self._reason = "tool_calls"
        new = text.add_text(left)
        if new:
            yield from self._clock.paused(Chunk("text", new))

    def _conclude(self, counters: tuple[int, int, int]) -> None:
        """Makes the result; `counters` are those of the start."""
        for _ in self._rest():
            pass
        decoder, guide = self._decoder, self._guide
        if decoder is not None:
            decoder.finish()
        hits, misses, read = (now - then for now, then in zip(self._engine.counters(), counters, strict=True))
        prefill, first, decode = self._clock.figures()
        stats = Stats(
            prompt_tokens=len(self._request.prompt),
            cached_tokens=self._cached,
            completion_tokens=len(self._ids),
            prefill_s=prefill,
            first_token_s=first,
            decode_s=decode,
            tokens_per_second=len(self._ids) / decode if decode > 0 else 0.0,
            expert_hits=hits,
            expert_misses=misses,
            bytes_read=read,
            seed=self._request.params.seed or 0,
            forwards=0 if decoder is None else decoder.forwards,
            forwards_saved=0 if decoder is None else decoder.saved,
            forced_tokens=0 if guide is None else guide.forced,
            drafts={"grammar": DraftStat() if guide is None else guide.statistics()},
        )
        text, reasoning = self._text.joined("text"), self._text.joined("reasoning")
        self.result = Result(
            text,
            reasoning,
            tuple(self._ids),
            self._reason,
            stats,
            self._stop_token,
            self._limit,
            self._calls,
            None if guide is None else guide.complete,
        )
        before = self._request.continues
        self._whole = self.result if before is None else _joined(before, self.result, self._text)
        if guide is not None and self.result.complete is not None and self._text.stopped:
            # What a stop string cut off is no part of the answer.
            complete = guide.accepts(self._whole.text)
            self.result = dataclasses.replace(self.result, complete=complete)
            self._whole = dataclasses.replace(self._whole, complete=complete)


class _Clock:
    """Times of a generation, not counting what the consumer of the stream takes."""

    def __init__(self) -> None:
        self._waited = 0.0
        self._started = self._prefilled = self._last = 0.0
        self._first: float | None = None

    def start(self) -> None:
        self._started = self._prefilled = self._last = self._now()

    def mark_prefill(self) -> None:
        self._prefilled = self._last = self._now()

    def mark_token(self) -> None:
        self._last = self._now()
        if self._first is None:
            self._first = self._last

    def paused(self, chunk: Chunk) -> Iterator[Chunk]:
        """Yields the chunk and leaves out the time until the consumer comes back."""
        left = time.perf_counter()
        try:
            yield chunk
        finally:
            self._waited += time.perf_counter() - left

    def figures(self) -> tuple[float, float | None, float]:
        """Seconds of prefill, until the first token, of decoding."""
        first = None if self._first is None else self._first - self._started
        return self._prefilled - self._started, first, self._last - self._prefilled

    def _now(self) -> float:
        return time.perf_counter() - self._waited


def _reuse(session: EngineSession, prompt: Sequence[int]) -> int:
    """Rewinds the cache to what it shares with the prompt; returns the number of tokens kept.

    The last token of the prompt is always computed again, because its logits are needed.
    """
    held = session.tokens()
    limit = min(len(held), len(prompt) - 1)
    shared = next((index for index in range(limit) if held[index] != prompt[index]), limit)
    session.rewind(shared)
    return shared


def _assembler(request: Request, tokenizer: Tokenizer | None) -> TextAssembler:
    """What takes the answer's tokens; of an answer that is continued it has taken those that there are."""
    text = TextAssembler(
        tokenizer.decoder() if tokenizer is not None else None,
        request.stop,
        request.think_ids,
        request.reasoning,
        CALL_OPENS if request.tools is not None else None,
    )
    before = request.continues
    if before is not None:
        text.replay(before.token_ids, {"text": before.text, "reasoning": before.reasoning})
    return text


def _joined(before: Result, result: Result, text: TextAssembler) -> Result:
    """An answer and its continuation as one; the statistics are those of the continuation."""
    kept = {
        "text": before.text[: len(before.text) - text.withdrawn("text")],
        "reasoning": before.reasoning[: len(before.reasoning) - text.withdrawn("reasoning")],
    }
    return dataclasses.replace(
        result,
        text=kept["text"] + result.text,
        reasoning=kept["reasoning"] + result.reasoning,
        token_ids=before.token_ids + result.token_ids,
        tool_calls=before.tool_calls + result.tool_calls,
    )


def _guide(engine: Engine, request: Request, tokenizer: Tokenizer | None) -> Guide | None:
    """The request's grammar at its beginning: the answer's, or behind the reasoning."""
    if request.guidance is None:
        return None
    if tokenizer is None:
        raise error(
            "tokenizer_missing",
            "a grammar judges text, and the model's folder has no tokenizer",
            "text cannot be told from tokens without it",
            "copy tokenizer.json from the original model",
        )
    awaits = request.think_ids[1] if request.reasoning and request.think_ids is not None else None
    size = engine.info.vocab_size
    replay = () if request.continues is None else request.continues.token_ids
    prompt = request.prompt[: len(request.prompt) - len(replay)]
    return Guide(request.guidance, tokenizer, size, prompt, request.stop_ids, awaits, replay)
