"""The token loop: a prompt in, chunks out.

Owns prefix reuse, the order of steps of one generation, and the statistics. Refuses prompts that are empty or
longer than the context. What must hold: the model's lock is held from the first chunk to the last and
released on every way out, letting go of the stream included; the stream joined equals the result's text; an
end token ends every generation, whatever way the prompt came.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from colibri.assembly import TextAssembler
from colibri.closing import Closing
from colibri.engine import (
    CancelToken,
    Engine,
    EngineSession,
    ProgressCallback,
    Sampling,
    Watcher,
    translated,
    watch,
)
from colibri.errors import ColibriError, error, invalid_value
from colibri.results import Chunk, FinishReason, Limit, Result, Stats
from colibri.sampling import BUILT_IN, ModelDefaults, SamplingOverrides, SamplingParams, check_names
from colibri.setting_kinds import REASONING_EFFORTS
from colibri.tokenizer import IncrementalDecoder, Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    LogitsProcessor = Callable[[NDArray[np.int32], NDArray[np.float32]], None]


class GenerationOptions(SamplingOverrides, total=False):
    """Keyword arguments of every call that generates.

    Attributes:
        stop: a text, or texts, that end the answer; they are not part of it.
        timeout: seconds after which the generation stops at a layer boundary, with `finish_reason` `timeout`.
            They cover the wait for the model and finding the tokens of the prompt; when they end before the
            tokens are known, the call raises `Cancelled` with the code `timeout`.
        cancel: a token with which another thread or a signal handler stops the generation.
        logits_processors: functions `f(tokens, logits)` that change the row of logits in place, after the
            penalties.
        on_progress: called with phase, done and total at most ten times a second; returning False stops.
        wait: whether to wait for another thread's generation; otherwise that is `Busy`.
        think: whether the template asks the model to reason first; None means: if an effort is asked for.
        reasoning_effort: how much: `low`, `medium`, `high` or `max`; None leaves it to the template.
    """

    stop: str | Sequence[str]
    timeout: float | None
    cancel: CancelToken | None
    logits_processors: Sequence[LogitsProcessor]
    on_progress: ProgressCallback | None
    wait: bool
    think: bool | None
    reasoning_effort: str | None


_OPTION_NAMES = tuple(GenerationOptions.__annotations__)
_SAMPLING_NAMES = tuple(SamplingOverrides.__annotations__)


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """Everything one generation needs, checked.

    Attributes:
        prompt: token ids, at least one.
        params: sampling parameters without gaps.
        stop_ids: end tokens; stop: stop strings.
        cancel: tokens that stop it.
        think_ids: the ids of the thinking marks, or None to leave them in the text.
        reasoning: whether the prompt ends inside a thinking block.
    """

    prompt: Sequence[int]
    params: SamplingParams
    stop_ids: frozenset[int]
    stop: tuple[str, ...] = ()
    timeout: float | None = None
    cancel: tuple[CancelToken, ...] = ()
    logits_processors: tuple[LogitsProcessor, ...] = ()
    on_progress: ProgressCallback | None = None
    wait: bool = True
    think_ids: tuple[int, int] | None = None
    reasoning: bool = False


def check_options(options: GenerationOptions, params: object, known: Sequence[str] = ()) -> None:
    """Checks what a generating call was given before anything is done with it.

    Raises:
        TypeError: a keyword that no generating call knows; the message suggests the nearest one.
        InvalidValue: `params`, `think`, `wait` or `reasoning_effort` is of another kind.
    """
    check_names(options, (*known, *_OPTION_NAMES))
    if params is not None and not isinstance(params, SamplingParams):
        raise invalid_value("params", params, "a SamplingParams, or None")
    if not isinstance(options.get("think"), (bool, NoneType)):
        raise invalid_value("think", options.get("think"), "True, False or None")
    if not isinstance(options.get("wait", True), bool):
        raise invalid_value("wait", options.get("wait"), "True or False")
    if options.get("reasoning_effort") not in (None, *REASONING_EFFORTS):
        expected = f"one of {', '.join(map(repr, REASONING_EFFORTS))}, or None"
        raise invalid_value("reasoning_effort", options.get("reasoning_effort"), expected)


def thinks(options: GenerationOptions) -> bool:
    """Whether the model is asked to reason: said, or implied by an effort."""
    think = options.get("think")
    return options.get("reasoning_effort") is not None if think is None else think


class Encoded(NamedTuple):
    """The tokens of a prompt, and the seconds it took to find them."""

    ids: list[int]
    seconds: float


def check_length(engine: Engine, tokenizer: Tokenizer, texts: Iterable[str]) -> None:
    """Refuses texts that are longer than the context, whatever their tokens are; costs next to nothing.

    Raises:
        ContextError: there are too many.
    """
    least = sum(map(tokenizer.least_tokens, texts))
    if least > engine.plan.context:
        raise too_long(least, engine, "at least ")


def encode_prompt(
    engine: Engine,
    tokenizer: Tokenizer,
    text: str,
    options: GenerationOptions,
    *,
    add_special_tokens: bool = False,
) -> Encoded:
    """The tokens of a prompt. Signals, the timeout and the cancel token of the options end a long search.

    Raises:
        ContextError: the text is longer than the context, whatever its tokens are.
        Cancelled: it was stopped; with the code `timeout` by the clock.
    """
    cancel, timeout = options.get("cancel"), options.get("timeout")
    watch((cancel,) if cancel is not None else (), timeout, None)
    check_length(engine, tokenizer, [text])
    start = time.monotonic()

    def check() -> None:
        if cancel is not None and cancel.cancelled:
            raise error("cancelled", "the prompt was not yet turned into tokens")
        if timeout is not None and time.monotonic() - start >= timeout:
            raise error(
                "timeout", f"the timeout of {timeout:g} s passed", "the prompt was not yet turned into tokens"
            )

    ids = tokenizer.encode(text, add_special_tokens=add_special_tokens, check=check)
    return Encoded(ids, time.monotonic() - start)


def build_request(
    prompt: Sequence[int] | Encoded,
    params: SamplingParams | None,
    options: GenerationOptions,
    defaults: ModelDefaults,
    **extra: Any,
) -> Request:
    """Joins parameters, options and the model's defaults; `extra` sets further fields of the request.

    The time that encoding the prompt took counts towards the timeout.

    Raises:
        InvalidValue: a value is out of range, or the prompt is empty.
    """
    overrides: dict[str, Any] = {name: value for name, value in options.items() if name in _SAMPLING_NAMES}
    complete = (params or SamplingParams()).override(overrides).or_else(defaults.params).or_else(BUILT_IN)
    if complete.seed is None:
        # 32 bits survive every JSON reader.
        complete = dataclasses.replace(complete, seed=int.from_bytes(os.urandom(4), "little"))
    ids, spent = prompt if isinstance(prompt, Encoded) else (prompt, 0.0)
    if not ids:
        raise empty_prompt()
    cancel, timeout = options.get("cancel"), options.get("timeout")
    # Refused now, not at the first chunk.
    watch((cancel,) if cancel is not None else (), timeout, options.get("on_progress"))
    return Request(
        prompt=ids,
        params=complete,
        stop=_stop_strings(options.get("stop")),
        timeout=None if timeout is None else max(timeout - spent, 0.001),
        cancel=(cancel,) if cancel is not None else (),
        logits_processors=_processors(options.get("logits_processors")),
        on_progress=options.get("on_progress"),
        wait=options.get("wait", True),
        **extra,
    )


def check_text(name: str, text: object) -> str:
    """The text of a prompt; an `InvalidValue` when it is none, or holds nothing."""
    if not isinstance(text, str):
        raise invalid_value(name, text, "a text")
    if not text.strip():
        raise empty_prompt()
    return text


def empty_prompt() -> ColibriError:
    """The error for a prompt without anything in it."""
    return error(
        "invalid_value", "the prompt is empty", "a model continues at least one token", "give it some text"
    )


def _stop_strings(value: object) -> tuple[str, ...]:
    expected = "a text or a list of texts, none of them empty"
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, Sequence) or isinstance(value, (bytes, bytearray)):
        raise invalid_value("stop", value, expected)
    for index, text in enumerate(value):
        if not isinstance(text, str) or not text:
            raise invalid_value(f"stop[{index}]", text, expected)
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise invalid_value(f"stop[{index}]", text, "made of characters, without lone surrogates")
    return tuple(value)


def _processors(value: object) -> tuple[LogitsProcessor, ...]:
    expected = "a list of functions of tokens and logits"
    if value is None:
        return ()
    if not isinstance(value, Sequence):
        raise invalid_value("logits_processors", value, expected)
    for index, processor in enumerate(value):
        if not callable(processor):
            raise invalid_value(f"logits_processors[{index}]", processor, expected)
    return tuple(value)


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
        decoder: IncrementalDecoder | None,
        on_finish: Callable[[Result], None] | None = None,
    ) -> None:
        if len(request.prompt) > engine.plan.context:
            raise too_long(len(request.prompt), engine)
        self._generation = _Generation(engine, cache, request, decoder, on_finish)
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
        decoder: IncrementalDecoder | None,
        on_finish: Callable[[Result], None] | None,
    ) -> None:
        self._engine = engine
        self._cache = cache
        self._request = request
        self._text = TextAssembler(decoder, request.stop, request.think_ids, request.reasoning)
        self._on_finish = on_finish
        self.result: Result | None = None
        self._ids: list[int] = []
        self._cached = 0
        self._reason: FinishReason = "cancelled"
        self._stop_token: int | None = None
        self._limit: Limit | None = None
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
            if self.result is not None and self._on_finish is not None:
                self._on_finish(self.result)

    def _steps(self, session: EngineSession, watcher: Watcher) -> Iterator[Chunk]:
        """Prefill, then token after token. `_reason` stays `cancelled` until another end is reached."""
        request, clock, text = self._request, self._clock, self._text
        total = len(request.prompt)
        self._cached = _reuse(session, request.prompt)
        clock.start()
        yield from clock.paused(Chunk("progress", done=self._cached, total=total))
        if not session.extend(request.prompt[self._cached :], watcher):
            self._reason = watcher.stopped or "cancelled"
            return
        clock.mark_prefill()
        yield from clock.paused(Chunk("progress", done=total, total=total))
        choose = self._chooser(session)
        most, room = request.params.max_tokens or 1, session.capacity - total + 1
        while True:
            token, logprob = choose()
            clock.mark_token()
            if token in request.stop_ids:
                self._reason, self._stop_token = "stop", token
                break
            self._ids.append(token)
            kind, piece, stopped = text.push(token)
            yield from clock.paused(Chunk(kind, piece, token, logprob))
            if stopped:
                self._reason = "stop"
                break
            if len(self._ids) >= min(most, room):
                self._reason, self._limit = "length", "max_tokens" if most <= room else "context"
                break
            if not session.extend((token,), watcher):
                self._reason = watcher.stopped or "cancelled"
                break
        for kind, piece in text.finish():
            yield from clock.paused(Chunk(kind, piece))

    def _chooser(self, session: EngineSession) -> Callable[[], tuple[int, float]]:
        """The function that chooses the next token, with or without the caller's processors."""
        request = self._request
        sampling = _native_sampling(request.params)
        if not request.logits_processors:
            return lambda: session.sample(sampling)
        import numpy as np

        def choose() -> tuple[int, float]:
            tokens = np.array([*request.prompt, *self._ids], dtype=np.int32)
            logits = session.penalised(sampling)
            for processor in request.logits_processors:
                processor(tokens, logits)
            # An infinite maximum leaves nothing to choose from, and so does a row without a finite number.
            if np.isnan(logits).any() or not np.isfinite(logits.max()):
                raise error(
                    "non_finite",
                    "logits_processors left a row of logits without a largest finite number",
                    "NaN or +infinity was written, or everything is -infinity",
                    "write finite numbers, and -infinity only for tokens that must not be chosen",
                )
            return session.choose(logits, sampling)

        return choose

    def _conclude(self, before: tuple[int, int, int]) -> None:
        """Makes the result; `before` holds the counters from the start."""
        for _ in self._text.finish():
            pass
        hits, misses, read = (now - then for now, then in zip(self._engine.counters(), before, strict=True))
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
        )
        text, reasoning = self._text.joined("text"), self._text.joined("reasoning")
        self.result = Result(
            text, reasoning, tuple(self._ids), self._reason, stats, self._stop_token, self._limit
        )


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


def _native_sampling(params: SamplingParams) -> Sampling:
    values = dataclasses.asdict(params)
    del values["max_tokens"]
    with translated():
        return Sampling(**values)


def too_long(tokens: int, engine: Engine, at_least: str = "") -> ColibriError:
    """The error for a prompt that does not fit the context."""
    context_max = engine.info.context_max
    if tokens <= context_max:
        fix = f"--ctx {tokens} or more (it takes memory), or send less"
    else:
        fix = f"send less: the model was made for at most {context_max:,} tokens"
    return error(
        "context_length_exceeded",
        f"the prompt is {at_least}{tokens:,} tokens; the context is {engine.plan.context:,}",
        "nothing was cut: a shortened prompt gives wrong answers",
        fix,
    )
