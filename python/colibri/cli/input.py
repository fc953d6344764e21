"""Reading what a person or a pipe sends to a chat.

On a terminal a message is typed in a line editor with history; a pasted block is one message, whether the
terminal marks pastes or not: lines that arrive together belong together. Three double quotes open a message
of several lines. Tab completes commands and is a tab elsewhere. From a pipe one line is one turn. Nothing
is echoed and no prompt is written to standard output unless it is the terminal.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from colibri.cli.console import Console
from colibri.cli.interrupt import interrupts
from colibri.cli.prompt import STANDARD_INPUT, TEXT_LIMIT, decode, readable
from colibri.files import TooLarge, read_file

PROMPT = ">>> "
MORE = "... "
QUOTES = '"""'
# Lines of one paste reach us within this time; nobody types a line that fast.
TOGETHER_SECONDS = 0.04
# Two presses of Ctrl-C leave the chat when they follow each other within this time.
LEAVE_SECONDS = 2.0
TWICE_SECONDS = 1.0
HISTORY_LINES = 1000
# The largest history file that is read, in bytes.
HISTORY_LIMIT = 64 << 20


class Leave(Exception):
    """The user leaves by pressing Ctrl-C twice."""


class Reader(Protocol):
    """Where messages come from."""

    def read(self) -> str | None:
        """The next message, or None at the end."""


class PipeReader:
    """One line of standard input is one message."""

    def __init__(self) -> None:
        self._lines = _Lines()

    def read(self) -> str | None:
        """The next line that is not blank."""
        while True:
            data = self._lines.read()
            line = None if data is None else decode(data, STANDARD_INPUT)
            if line is None or line.strip():
                return line


class _Lines:
    """Lines of standard input, read without a buffer that would hide what has already arrived."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._ended = sys.stdin is None

    def read(self) -> bytes | None:
        """The next line without its end, or None; an error when it has more than `TEXT_LIMIT` bytes."""
        end = self._pending.find(b"\n")
        while end < 0 and not self._ended:
            with readable(STANDARD_INPUT):
                piece = os.read(0, 65536)
                if len(self._pending) + len(piece) > TEXT_LIMIT:
                    raise TooLarge(TEXT_LIMIT)
            self._ended = not piece
            end = piece.find(b"\n")
            end += len(self._pending) if end >= 0 else 0
            self._pending += piece
        if not self._pending:
            return None
        line = bytes(self._pending if end < 0 else self._pending[:end])
        del self._pending[: len(line) + 1]
        return line.rstrip(b"\r")

    def arrived(self, seconds: float) -> bool:
        return b"\n" in self._pending or bool(select.select([0], [], [], seconds)[0])


class TerminalReader:
    """A line editor on a terminal."""

    def __init__(self, console: Console, history: Path, complete: Callable[[str], list[str]]) -> None:
        self._console = console
        self._history = History(history, complete)
        # The editor writes its prompt to standard output; where that is not the terminal, plain lines are
        # read.
        self._edits = console.out_is_terminal and self._history.start_editor()
        self._lines = _Lines()
        self._pressed_at = float("-inf")
        self._was_empty = True

    def keep_history(self, wanted: bool) -> None:
        """Whether messages are written to the history file."""
        self._history.kept = wanted

    def read(self) -> str | None:
        """The next message that is not blank."""
        while True:
            try:
                with interrupts().prompt(self._on_interrupt):
                    text = self._message()
            except KeyboardInterrupt:
                self._console.line()
                if self._was_empty:
                    self._console.line("Ctrl-C again or Ctrl-D leaves", "dim")
                continue
            if text is None:
                self._console.line()
                return None
            if text.strip():
                self._history.add(text)
                return text

    def _on_interrupt(self) -> None:
        now = time.monotonic()
        self._was_empty = not self._history.line_in_progress()
        # A press that stopped the answer counts as the first of two when they follow each other fast.
        stopped_just_now = now - interrupts().stopped_at < TWICE_SECONDS
        if self._was_empty and (stopped_just_now or now - self._pressed_at < LEAVE_SECONDS):
            raise Leave
        self._pressed_at = now if self._was_empty else float("-inf")
        raise KeyboardInterrupt

    def _message(self) -> str | None:
        first = self._line(PROMPT)
        if first is None:
            return None
        lines = [first]
        if first.lstrip().startswith(QUOTES):
            return self._quoted(first.lstrip()[len(QUOTES) :])
        while self._more_arrived():
            line = self._line("")
            if line is None:
                break
            lines.append(line)
        return "\n".join(lines)

    def _quoted(self, text: str) -> str:
        while QUOTES not in text:
            line = self._line(MORE)
            if line is None:
                break
            text += "\n" + line
        return text.partition(QUOTES)[0].removeprefix("\n").removesuffix("\n")

    def _more_arrived(self) -> bool:
        if self._edits:
            return bool(select.select([0], [], [], TOGETHER_SECONDS)[0])
        return self._lines.arrived(TOGETHER_SECONDS)

    def _line(self, prompt: str) -> str | None:
        if not self._edits:
            self._console.prompt(prompt)
            data = self._lines.read()
            return None if data is None else data.decode("utf-8", "replace")
        try:
            return input(prompt).replace("\r\n", "\n").replace("\r", "\n")
        except EOFError:
            return None


class History:
    """Messages of earlier chats, for the arrow keys. Line ends inside a message are escaped in the file."""

    def __init__(self, file: Path, complete: Callable[[str], list[str]]) -> None:
        self._file = file
        # What may stand in the place of the last word of a line.
        self._complete = complete
        self._candidates: list[str] = []
        self._editor = False
        self.kept = True

    def start_editor(self) -> bool:
        """Loads the line editor and the history; says whether there is an editor."""
        try:
            import readline
        except ImportError:
            return False
        self._editor = True
        readline.parse_and_bind("set enable-bracketed-paste on")
        readline.set_completer(self._candidate)
        readline.set_completer_delims(" ")
        readline.parse_and_bind("tab: complete")
        readline.set_auto_history(False)
        readline.clear_history()
        with contextlib.suppress(OSError):
            text = read_file(self._file, HISTORY_LIMIT).decode("utf-8", "replace")
            for line in text.split("\n")[-HISTORY_LINES:]:
                _add_to_editor(_unescape(line))
        interrupts().on_leave(_end_bracketed_paste)
        return True

    def _candidate(self, _word: str, index: int) -> str | None:
        """The line editor asks for the candidates one by one."""
        if index == 0:
            import readline

            line = readline.get_line_buffer()[: readline.get_endidx()]
            if not line.startswith(("/", ":")):
                readline.insert_text("\t")
                readline.redisplay()
                return None
            found = self._complete(line)
            whole = len(found) == 1 and not found[0].endswith("/")
            self._candidates = [found[0] + " "] if whole else found
        return self._candidates[index] if index < len(self._candidates) else None

    def line_in_progress(self) -> str:
        """What has been typed on the current line."""
        if not self._editor:
            return ""
        import readline

        return readline.get_line_buffer()

    def add(self, text: str) -> None:
        """Remembers a message, in the editor and in the file.

        A file that cannot be written is no reason to stop.
        """
        if self._editor:
            _add_to_editor(text)
        if not self.kept:
            return
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # A pipe in its place would wait for a reader.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
            descriptor = os.open(self._file, flags, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as stream:
                stream.write(_escape(text) + "\n")


def _add_to_editor(text: str) -> None:
    import readline

    # The editor takes texts as C does, which end at the character 0.
    readline.add_history(text.replace("\0", ""))


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _unescape(line: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], line)


def _end_bracketed_paste() -> None:
    with contextlib.suppress(OSError):
        if os.isatty(1):
            os.write(1, b"\x1b[?2004l")
