"""Progress and characters: how often lines are written, and what reaches a terminal."""

from __future__ import annotations

import io
import json

import pytest
from colibri.cli.console import Console, sanitise, to_ascii
from colibri.cli.progress import Bar, JsonLines, Plain, Progress, Silent, choose_display
from colibri.cli.words import (
    bytes_in_words,
    duration_in_words,
    parameters_in_words,
    seconds_in_words,
    wrapped,
)
from colibri.config import Environment


class Screen(io.StringIO):
    """A stream that says whether it is a terminal."""

    encoding = "utf-8"

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture
def consoles(monkeypatch: pytest.MonkeyPatch):
    """Makes a console whose standard error is a terminal or not."""

    def make(terminal: bool, **variables: str) -> tuple[Console, Screen]:
        screen = Screen(terminal)
        monkeypatch.setattr("sys.stderr", screen)
        return Console(Environment(variables)), screen

    return make


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run(progress: Progress, clock: Clock, seconds: float, steps: int) -> None:
    """A prefill of ``steps`` equal steps."""
    for step in range(steps + 1):
        clock.now = seconds * step / steps
        progress.update("prefill", step, steps, "token")
    progress.finish()


def test_a_drawn_line_is_redrawn_at_most_ten_times_a_second_and_wiped(consoles) -> None:
    console, screen = consoles(True, TERM="xterm")
    clock = Clock()
    run(Progress(Bar(console), clock), clock, 2.0, 1000)
    drawn = screen.getvalue().count("prefill")
    assert 10 < drawn <= 20
    assert "\n" not in screen.getvalue()
    assert screen.getvalue().endswith("\r\x1b[K")


def test_a_drawn_line_is_wiped_before_a_message(consoles) -> None:
    console, screen = consoles(True, TERM="xterm")
    console.draw("half way")
    console.warn("something")
    assert screen.getvalue().endswith("\r\x1b[K\x1b[1;33mwarning:\x1b[0m something\n")


def test_plain_lines_come_with_every_tenth(consoles) -> None:
    console, screen = consoles(False)
    clock = Clock()
    run(Progress(Plain(console, always=False), clock), clock, 100.0, 1000)
    lines = screen.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[0] == "prefill 10 % (100 of 1,000 tokens)"
    assert lines[-1] == "prefill done in 1 min 40 s"


def test_plain_lines_come_every_thirty_seconds_when_it_is_slow(consoles) -> None:
    console, screen = consoles(False)
    clock = Clock()
    run(Progress(Plain(console, always=False), clock), clock, 3000.0, 3000)
    lines = screen.getvalue().splitlines()
    assert len(lines) == 100
    assert lines[0].startswith("prefill 1 %")


def test_a_phase_within_a_second_says_nothing_unless_asked(consoles) -> None:
    console, screen = consoles(False)
    clock = Clock()
    run(Progress(Plain(console, always=False), clock), clock, 0.5, 100)
    assert screen.getvalue() == ""
    run(Progress(Plain(console, always=True), clock), clock, 0.5, 100)
    assert screen.getvalue() == "prefill done in 0.5 s\n"


def test_json_lines_hold_the_rate_and_the_end(consoles) -> None:
    console, screen = consoles(False)
    clock = Clock()
    run(Progress(JsonLines(console), clock), clock, 2.0, 1000)
    events = [json.loads(line) for line in screen.getvalue().splitlines()]
    assert len(events) <= 21
    assert events[-1] == {"phase": "prefill", "done": 1000, "total": 1000, "unit": "token", "eta_s": 0.0}
    assert events[9]["eta_s"] == pytest.approx(1.0, abs=0.2)


def test_the_display_follows_terminal_and_wish(consoles) -> None:
    console, _ = consoles(True, TERM="xterm")
    kinds = {name: type(choose_display(console, name)) for name in ("auto", "bar", "plain", "json", "none")}
    assert kinds == {"auto": Bar, "bar": Bar, "plain": Plain, "json": JsonLines, "none": Silent}
    for terminal, variables in ((False, {}), (True, {"TERM": "dumb"})):
        console, _ = consoles(terminal, **variables)
        assert type(choose_display(console, "auto")) is Plain
        assert type(choose_display(console, "bar")) is Plain
    console.configure(quiet=True, verbose=0, colour="auto")
    assert type(choose_display(console, "auto")) is Silent


def test_line_ends_at_the_end_of_an_answer_become_one(consoles, monkeypatch: pytest.MonkeyPatch) -> None:
    console, _ = consoles(False)
    out = Screen(True)
    monkeypatch.setattr("sys.stdout", out)
    console.out_is_terminal = console.ends_lines = True
    for piece in ("one\n", "\ntwo\x1b[2J", "\n", "\n\n"):
        console.answer(piece)
    console.end_answer()
    assert out.getvalue() == "one\n\ntwo[2J\n"


def test_control_characters_do_not_reach_a_terminal() -> None:
    assert sanitise("a\x1b[31mb\x9b1mc\x07\td\r\ne\x7f\u0085") == "a[31mb1mc\td\ne"


def test_ascii_fallback_has_no_other_character() -> None:
    shown = to_ascii("512 B · 3 × 4 … ≈ █░ é")
    assert shown == "512 B - 3 x 4 ... ~ #. \\xe9"


def test_long_lines_are_broken_between_words_behind_their_label() -> None:
    assert wrapped("short", 80) == "short"
    lines = wrapped("basis      sizes from the headers and memory as the system reports it", 40).split("\n")
    assert all(len(line) < 40 for line in lines)
    assert lines[0].startswith("basis      sizes")
    assert all(line.startswith(" " * 11) and line[11] != " " for line in lines[1:])
    assert wrapped("[" + "word · " * 30 + "]", 80).replace("\n", " ") == "[" + "word · " * 30 + "]"
    assert wrapped("x" * 200, 80) == "x" * 200


def test_words() -> None:
    assert [duration_in_words(value) for value in (0.25, 90, 300, 5400, 86400)] == [
        "250ms",
        "1m30s",
        "5m",
        "1h30m",
        "24h",
    ]
    assert [seconds_in_words(value) for value in (0.42, 27, 581, 7800)] == [
        "0.4 s",
        "27 s",
        "9 min 41 s",
        "2 h 10 min",
    ]
    assert [bytes_in_words(value) for value in (512, 9.3e6, 372.1e9, 1.24e12)] == [
        "512 B",
        "9.3 MB",
        "372.1 GB",
        "1.24 TB",
    ]
    assert [parameters_in_words(value) for value in (999, 13_250_000, 744 * 10**9)] == [
        "999",
        "13 M",
        "744 B",
    ]


def test_a_stop_is_said_once_and_names_a_signal_that_nobody_pressed(monkeypatch) -> None:
    from colibri.cli import failure

    for code, message, said in (
        (130, "stopped", "stopped"),
        (143, "stopped", "stopped by SIGTERM"),
        (130, "the transfer was stopped", "stopped: the transfer was stopped"),
    ):
        monkeypatch.setattr(failure.interrupts(), "exit_code", code)
        assert failure._stopped(message) == said
