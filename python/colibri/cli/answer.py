"""One answer, from request to last line: streaming to standard output, reasoning apart, figures at the end.

The same function serves ``generate`` and every turn of ``chat``. What must hold: text reaches standard
output as it comes and only whole characters; a signal, a timeout or a closed pipe ends the generation at
the next safe point; the cursor is never left in the middle of a line of figures.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from colibri.cli import failure
from colibri.cli.console import Console, console
from colibri.cli.interrupt import interrupts
from colibri.cli.models import UNITS
from colibri.cli.progress import Progress, choose_display
from colibri.cli.words import bytes_in_words, count_in_words, plural, seconds_in_words
from colibri.config import Settings

if TYPE_CHECKING:
    from colibri.generation import Stream
    from colibri.results import Result, Stats

# The commands of a chat that make room in a full context.
MAKE_ROOM = "/clear, /undo"
# A prompt is timed for this long before it is said how long the rest will take.
MEASURE_SECONDS = 2.0


class Prefill:
    """Watches a prompt being read: shows progress and asks once when the rest would take long."""

    def __init__(self, console: Console, progress: Progress, confirm_over: float, asks: bool) -> None:
        self._console, self._progress = console, progress
        self._confirm_over, self._asks = confirm_over, asks
        self._start: float | None = None
        self._first = 0
        self.done = 0
        # The user was asked and does not want to wait.
        self.dropped = False

    def update(self, phase: str, done: int, total: int) -> bool:
        """Takes an event of the core; False stops the work."""
        if phase != "prefill":
            return True
        now = time.monotonic()
        self.done = done
        if self._start is None:
            self._start, self._first = now, done
        self._progress.update(phase, done, total, UNITS[phase])
        elapsed = now - self._start
        if self._asks and elapsed >= min(MEASURE_SECONDS, self._confirm_over) and done > self._first:
            rate = (done - self._first) / elapsed
            left = (total - done) / rate
            if left > self._confirm_over:
                self._asks = False
                self.dropped = not self._ask(total, left, rate)
        return not self.dropped

    def _ask(self, total: int, left: float, rate: float) -> bool:
        self._console.line(
            f"That is {count_in_words(total)} tokens: about {seconds_in_words(left)} more of prefill at "
            f"{rate_in_words(rate)} tok/s."
        )
        try:
            # Whoever sees the question may answer it, with Ctrl-C too.
            with interrupts().prompt(_drop):
                self._console.prompt("Enter = go · n or Ctrl-C = drop ")
                answer = sys.stdin.readline()
        except KeyboardInterrupt:
            self._console.line()
            return False
        # Only what says yes goes on; the end of the input says nothing.
        return answer.strip().lower() in ("", "y", "yes", "go") and answer != ""


def _drop() -> None:
    raise KeyboardInterrupt


def stream_answer(start: Callable[..., Stream], settings: Settings, **overrides: Any) -> Answer:
    """Streams one answer and returns how it went.

    Args:
        start: starts the generation with the options it is given. settings: the settings of this run.
        overrides: options that win over the settings.

    Raises:
        BrokenPipeError: the reader of standard output went away; the generation is stopped.
        ColibriError: the generation failed.
    """
    from colibri.engine import CancelToken

    screen = console()
    progress = Progress(choose_display(screen, settings.text("progress") or "auto"))
    asks = screen.in_is_terminal and screen.err_is_terminal and not settings.flag("json")
    prefill = Prefill(screen, progress, settings.number("confirm_over") or 0.0, asks)
    decode = Decode(progress, settings)
    sink = Sink(settings)
    cancel = CancelToken()
    options = {**stream_options(settings), **overrides}
    with (
        interrupts().work(cancel.cancel),
        start(**options, cancel=cancel, on_progress=prefill.update) as stream,
    ):
        try:
            for chunk in stream:
                if chunk.kind == "progress":
                    continue
                decode.update(chunk.token is not None)
                sink.take(chunk.kind, chunk.text)
            sink.calls(stream.result.tool_calls)
        finally:
            decode.finish()
            sink.end()
    return Answer(stream.result, prefill.done)


@dataclass(frozen=True, slots=True)
class Answer:
    """How an answer went."""

    result: Result
    # Tokens of the prompt that were read in this turn.
    prefilled: int

    def exit_code(self) -> int:
        """The exit code that goes with how the answer ended."""
        if self.result.finish_reason == "timeout":
            return failure.TIMEOUT
        if self.result.finish_reason == "cancelled":
            return interrupts().exit_code or failure.SIGINT
        return failure.INCOMPLETE if self.result.complete is False else 0

    def incomplete_line(self) -> str:
        """Why a structured answer is not whole."""
        by = {"max_tokens": "by the limit of tokens (-n)", "context": "by the context"}
        return f"the answer is incomplete: cut {by.get(self.result.limit or '', 'by --stop or an end token')}"

    def in_prefill(self) -> bool:
        """The answer stopped before its first token."""
        stats = self.result.stats
        return not stats.completion_tokens and self.prefilled + stats.cached_tokens < stats.prompt_tokens

    def stopped_line(self) -> str:
        """Where a stopped answer stopped, and what was kept."""
        stats = self.result.stats
        by = "by --timeout " if self.result.finish_reason == "timeout" else ""
        if self.in_prefill():
            done, total = self.prefilled + stats.cached_tokens, stats.prompt_tokens
            return f"stopped {by}during prefill at {count_in_words(done)} of {count_in_words(total)} tokens"
        return f"stopped {by}after {plural(stats.completion_tokens, 'token')}; what was written is kept"


def stream_options(settings: Settings) -> dict[str, Any]:
    """The settings of generation as options of ``Model.stream``; what nobody set is left to the model."""
    options: dict[str, Any] = settings.sampling()
    if settings.texts("stop"):
        options["stop"] = settings.texts("stop")
    if settings.number("timeout") is not None:
        options["timeout"] = settings.number("timeout")
    options["think"] = settings.thinking
    if settings.text("reasoning_effort") is not None:
        options["reasoning_effort"] = settings.text("reasoning_effort")
    return options


class Decode:
    """Shows progress of decoding, where the text itself does not show it."""

    def __init__(self, progress: Progress, settings: Settings) -> None:
        self._progress = progress
        self._shown = settings.flag("json") or settings.text("progress") == "json"
        self._limit = settings.integer("max_tokens") or 0
        self._done = 0

    def update(self, is_token: bool) -> None:
        """A piece of the answer has come."""
        if self._shown:
            self._done += is_token
            self._progress.update("decode", self._done, max(self._limit, self._done), "token")
        else:
            self._progress.finish()

    def finish(self) -> None:
        """The answer is over, whether the limit was reached or not."""
        if self._done:
            self._progress.update("decode", self._done, self._done, "token")
        self._progress.finish()


class Sink:
    """Where the pieces of an answer go."""

    def __init__(self, settings: Settings) -> None:
        self._console = console()
        self._json = settings.flag("json")
        self._thinking = settings.text("show_thinking")
        self._last_kind = "text"
        self._thought = False
        # Whether something other than a line break was written last.
        self._in_line = False

    def take(self, kind: str, text: str) -> None:
        """Writes one piece."""
        # Calls are shown as JSON when they are whole.
        if not text or self._json or kind == "tool_call":
            return
        if kind == "reasoning":
            self._reasoning(text)
        else:
            self._leave_thoughts()
            self._console.answer(text)
            self._in_line = not text.endswith("\n")
        self._last_kind = kind

    def calls(self, calls: Sequence[dict[str, Any]]) -> None:
        """Writes calls, one JSON object a line; the last line has an end too, for those who read by lines."""
        if self._json or not calls:
            return
        self._leave_thoughts()
        head = "\n" if self._last_kind == "text" and self._in_line else ""
        functions = [call["function"] for call in calls]
        lines = [f'{{"name": "{one["name"]}", "arguments": {one["arguments"]}}}\n' for one in functions]
        self._console.answer(head + "".join(lines))

    def _reasoning(self, text: str) -> None:
        if self._thinking == "stdout":
            self._console.answer(text)
        elif self._thinking == "stderr" and not self._console.quiet:
            self._thought = True
            self._console.thought(text)

    def _leave_thoughts(self) -> None:
        if self._last_kind != "reasoning":
            return
        if self._thinking == "stdout":
            self._console.answer("\n\n")
        elif self._thought:
            self._console.line()
        self._thought = False

    def end(self) -> None:
        """Ends the answer."""
        if self._thought:
            self._console.line()
        if not self._json:
            self._console.end_answer()


def figures(result: Result, thinking: bool, in_chat: bool = False) -> str:
    """The line of figures after an answer."""
    stats = result.stats
    passes = f" in {plural(stats.forwards, 'forward')}" if stats.forwards_saved else ""
    parts = [f"{stats.completion_tokens} tok{passes}"]
    if stats.forced_tokens:
        parts.append(f"{stats.forced_tokens} forced by the grammar")
    draft = stats.drafts.get("grammar")
    if draft is not None and draft.proposed:
        off = f", off: {draft.switched_off}" if draft.switched_off else ""
        parts.append(f"drafts {draft.accepted}/{draft.proposed} (grammar{off})")
    parts += [f"{rate_in_words(stats.tokens_per_second)} tok/s"]
    if stats.first_token_s is not None:
        detail = (
            f" ({stats.prompt_tokens} tok prompt, {stats.cached_tokens} cached)"
            if stats.cached_tokens
            else ""
        )
        parts.append(f"first token {stats.first_token_s:.2f} s{detail}")
    share = hit_rate(stats)
    if share is not None:
        parts.append(f"experts {100 * share:.0f} % from RAM, {bytes_in_words(stats.bytes_read)} read")
    if result.limit == "max_tokens":
        parts.append(f"cut at the limit of {plural(stats.completion_tokens, 'token')} (-n)")
    elif result.limit == "context":
        ways = f"{MAKE_ROOM} or a larger --ctx" if in_chat else "a larger --ctx"
        parts.append(f"cut because the context is full: {ways}")
    parts.append(f"thinking {'on' if thinking else 'off'}")
    return "[" + " · ".join(parts) + "]"


def show_details(result: Result) -> None:
    """What -v adds after an answer: the seed and the memory left; -vv adds every count and time."""
    from colibri.engine import machine

    if not console().verbose:
        return
    free = machine().memory_available
    left = "" if free is None else f" · {bytes_in_words(free)} of memory available"
    console().detail(f"seed {result.stats.seed}{left}")
    console().detail(json.dumps(result.stats.to_dict()), 2)


def rate_in_words(rate: float) -> str:
    """Tokens a second with a sensible number of digits."""
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.2f}"


def hit_rate(stats: Stats) -> float | None:
    """Share of the experts that were in memory."""
    touched = stats.expert_hits + stats.expert_misses
    return stats.expert_hits / touched if touched else None


def as_json(model_name: str, result: Result, notes: Sequence[str] = ()) -> dict[str, object]:
    """The object of ``--json``.

    Args:
        model_name: the model; result: the answer; notes: what to know about its schema or its tools.
    """
    stats = result.stats
    return {
        "model": model_name,
        "text": result.text,
        "reasoning": result.reasoning,
        "tool_calls": list(result.tool_calls),
        "finish_reason": result.finish_reason,
        "limit": result.limit,
        "complete": result.complete,
        "notes": list(notes),
        "usage": {
            "prompt_tokens": stats.prompt_tokens,
            "cached_tokens": stats.cached_tokens,
            "completion_tokens": stats.completion_tokens,
            "total_tokens": stats.prompt_tokens + stats.completion_tokens,
        },
        "timings": {
            "prefill_ms": round(1000 * stats.prefill_s, 3),
            "first_token_ms": None if stats.first_token_s is None else round(1000 * stats.first_token_s, 3),
            "decode_ms": round(1000 * stats.decode_s, 3),
            "tokens_per_second": round(stats.tokens_per_second, 3),
            "expert_hit_rate": hit_rate(stats),
            "bytes_read": stats.bytes_read,
            "forwards": stats.forwards,
            "forwards_saved": stats.forwards_saved,
            "forced_tokens": stats.forced_tokens,
            "draft": {name: [draft.proposed, draft.accepted] for name, draft in stats.drafts.items()},
            "draft_off": {
                name: draft.switched_off for name, draft in stats.drafts.items() if draft.switched_off
            },
        },
        "seed": stats.seed,
    }
