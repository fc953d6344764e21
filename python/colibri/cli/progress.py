"""Progress on standard error: a drawn line, plain lines, JSON lines, or nothing.

On a terminal one line is drawn again at most ten times a second and wiped when the phase ends. Elsewhere
a plain line is written when a tenth more is done, but not more than one a second, or when thirty seconds
have passed; a phase that is over within a second says nothing. JSON lines are for programs: one event
each, the last of a phase always included.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Protocol

from colibri.cli.console import Console, columns, display_width
from colibri.cli.words import bytes_in_words, seconds_in_words

# What the phases count.
UNITS = {
    "load": "byte",
    "download": "byte",
    "convert": "byte",
    "verify": "byte",
    "prefill": "token",
    "decode": "layer",
}
REDRAW_SECONDS = 0.1
PLAIN_SECONDS = 30.0
PLAIN_SHARE = 0.1
QUIET_SECONDS = 1.0
BAR_COLUMNS = 24


def amount(done: float, total: float, unit: str) -> str:
    """How much of what: 22 of 52 tokens, 3.1 of 9.9 GB."""
    if unit == "byte":
        return f"{bytes_in_words(done)} of {bytes_in_words(total)}"
    return f"{done:,.0f} of {total:,.0f} {unit}s"


class Phase:
    """One phase as it goes on: what was done since when."""

    def __init__(self, name: str, unit: str, total: float, now: float) -> None:
        self.name, self.unit, self.total, self.start = name, unit, total, now
        self.done = 0.0
        self.first = 0.0
        # When something was last written, and how far the phase was then.
        self.written_at = now
        self.written = 0.0

    def rate(self, now: float) -> float:
        """Units a second so far, 0 while unknown."""
        elapsed = now - self.start
        return (self.done - self.first) / elapsed if elapsed > 0 else 0.0

    def remaining(self, now: float) -> float | None:
        """Seconds left at the rate so far."""
        rate = self.rate(now)
        return (self.total - self.done) / rate if rate > 0 and self.total else None


class Display(Protocol):
    """A way to show progress."""

    def update(self, phase: Phase, now: float, /) -> None:
        """The phase has moved on."""

    def finish(self, phase: Phase, now: float, /) -> None:
        """The phase is over."""


class Bar:
    """One line of a terminal, drawn again."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def update(self, phase: Phase, now: float) -> None:
        """Draws the line, at most ten times a second."""
        if now - phase.written_at < REDRAW_SECONDS:
            return
        phase.written_at = now
        share = min(phase.done / phase.total, 1.0) if phase.total else 0.0
        filled = round(share * BAR_COLUMNS)
        bar = "█" * filled + "░" * (BAR_COLUMNS - filled)
        parts = [f"{phase.name:<8} {bar} {amount(phase.done, phase.total, phase.unit)}"]
        rate = phase.rate(now)
        if rate > 0:
            parts.append(
                f"{bytes_in_words(rate)}/s" if phase.unit == "byte" else f"{rate:.1f} {phase.unit}s/s"
            )
        left = phase.remaining(now)
        if left is not None and now - phase.start > 1:
            parts.append(f"about {seconds_in_words(left)} left")
        text = " · ".join(parts)
        width = columns(sys.stderr)
        self.console.draw(text[: width - 1] if display_width(text) >= width else text)

    def finish(self, _phase: Phase, _now: float) -> None:
        """Wipes the line."""
        self.console.clear()


class Plain:
    """A line now and then."""

    def __init__(self, console: Console, always: bool) -> None:
        self.console = console
        # Short phases get their closing line too.
        self.always = always
        self._spoke = False

    def update(self, phase: Phase, now: float) -> None:
        """Writes a line for every tenth or every thirty seconds."""
        if phase.done >= phase.total:
            # The closing line says so.
            return
        waited = now - phase.written_at
        moved = (phase.done - phase.written) / phase.total if phase.total else 0.0
        if waited >= PLAIN_SECONDS or (waited >= QUIET_SECONDS and moved >= PLAIN_SHARE):
            phase.written_at, phase.written = now, phase.done
            self._spoke = True
            share = f"{100 * phase.done / phase.total:.0f} % " if phase.total else ""
            self.console.line(f"{phase.name} {share}({amount(phase.done, phase.total, phase.unit)})")

    def finish(self, phase: Phase, now: float) -> None:
        """Says how long it took, if there was anything to say before."""
        if self._spoke or self.always:
            how = (
                "done"
                if phase.done >= phase.total
                else f"stopped at {amount(phase.done, phase.total, phase.unit)}"
            )
            self.console.line(f"{phase.name} {how} in {seconds_in_words(now - phase.start)}")
        self._spoke = False


class JsonLines:
    """One JSON object a line."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def update(self, phase: Phase, now: float) -> None:
        """Writes an event, at most ten a second."""
        if now - phase.written_at >= REDRAW_SECONDS:
            self._write(phase, now)

    def finish(self, phase: Phase, now: float) -> None:
        """Writes the last event."""
        self._write(phase, now)

    def _write(self, phase: Phase, now: float) -> None:
        phase.written_at = now
        left = phase.remaining(now)
        event = {
            "phase": phase.name,
            "done": int(phase.done),
            "total": int(phase.total),
            "unit": phase.unit,
            "eta_s": None if left is None else round(max(left, 0.0), 1),
        }
        self.console.line(json.dumps(event))


class Silent:
    """Nothing."""

    def update(self, _phase: Phase, _now: float) -> None:
        """Shows nothing."""

    def finish(self, _phase: Phase, _now: float) -> None:
        """Shows nothing."""


def choose_display(console: Console, wanted: str) -> Display:
    """The display for ``auto``, ``bar``, ``plain``, ``json`` or ``none``."""
    if wanted == "auto":
        if console.quiet:
            return Silent()
        return Bar(console) if console.redraws else Plain(console, always=False)
    displays: dict[str, Display] = {
        "bar": Bar(console) if console.redraws else Plain(console, always=True),
        "plain": Plain(console, always=True),
        "json": JsonLines(console),
        "none": Silent(),
    }
    return displays[wanted]


class Progress:
    """Receives events of the core and passes them to a display, a phase at a time."""

    def __init__(self, display: Display, clock: Callable[[], float] = time.monotonic) -> None:
        self._display = display
        self._clock = clock
        self._phase: Phase | None = None

    def update(self, name: str, done: float, total: float, unit: str) -> None:
        """``done`` of ``total`` units of this phase are done. A phase with nothing to do is none."""
        if not total:
            return
        now = self._clock()
        if self._phase is None or self._phase.name != name or done < self._phase.done:
            self.finish()
            self._phase = Phase(name, unit, total, now)
            self._phase.first = done if done < total else 0.0
        self._phase.done, self._phase.total = done, total
        self._display.update(self._phase, now)

    def finish(self) -> None:
        """The phase in progress is over."""
        if self._phase is not None:
            self._display.finish(self._phase, self._clock())
            self._phase = None
