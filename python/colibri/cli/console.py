"""Standard output and standard error: who may write what, colour, characters, harmless text.

Standard output takes the answer as UTF-8, a whole character at a time. Everything else is a line on
standard error. A line that progress has drawn is wiped before another one is written. On a terminal lines
are broken between words. Text of models and names of files are stripped of control characters wherever a
terminal would obey them.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import sys
import unicodedata
from typing import TextIO

from colibri.cli.words import one_line, wrapped
from colibri.cli.words import sanitise as sanitise
from colibri.config import Environment, encoding_is_unicode
from colibri.errors import ColibriError, error

JSON_VERSION = 1
_UNESCAPED = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_STYLES = {"error": "1;31", "warning": "1;33", "good": "32", "dim": "2", "bold": "1"}
_ASCII = str.maketrans(
    dict(zip("·…—–×≈⇒→█░", ("-", "...", "-", "-", "x", "~", "=>", "->", "#", "."), strict=True))
)


def to_ascii(text: str) -> str:
    """The text for a stream that cannot show more than ASCII."""
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")


def not_written(fault: OSError, place: str = "to standard output") -> ColibriError:
    """The error for something that the system did not let us write."""
    if fault.errno in (errno.ENOSPC, errno.EDQUOT):
        return error("disk_full", f"cannot write {place}", fault.strerror, "free some space and run it again")
    why = fault.strerror or str(fault)
    return error("output_not_writable", f"cannot write {place}", why, "choose another destination")


def display_width(text: str) -> int:
    """Columns the text takes on a terminal."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def is_terminal(stream: TextIO | None) -> bool:
    """The stream exists, is open and is a terminal."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def columns(stream: TextIO | None) -> int:
    """Columns of the terminal behind the stream; 80 where that is unknown."""
    try:
        return (os.get_terminal_size(stream.fileno()).columns if stream is not None else 0) or 80
    except (OSError, ValueError):
        return 80


class Console:
    """The two streams of a run."""

    def __init__(self, environment: Environment | None = None) -> None:
        self.environment = environment or Environment()
        self.out_is_terminal = is_terminal(sys.stdout)
        self.err_is_terminal = is_terminal(sys.stderr)
        self.in_is_terminal = is_terminal(sys.stdin)
        self.unicode = encoding_is_unicode()
        self.quiet = False
        self.verbose = 0
        # Standard output carries JSON objects, one a line.
        self.json = False
        self._colour = "auto"
        # Clears what progress has drawn on the current line; set by the progress display while it owns
        # the line.
        self._drawn = False
        # An answer ends its line on a terminal, and in a chat, where others follow.
        self.ends_lines = self.out_is_terminal
        self._held = ""
        self._wrote = False
        self._warned: set[str] = set()

    def configure(self, *, quiet: bool, verbose: int, colour: str, json: bool = False) -> None:
        """Takes the settings of this run. An object on standard output says all there is to say."""
        self.quiet, self.verbose, self._colour = quiet or (json and not verbose), verbose, colour
        self.json = json

    @property
    def colour(self) -> bool:
        """Standard error gets colour: asked for, or a terminal that can and nobody objects."""
        return self._coloured(self.err_is_terminal)

    def _coloured(self, terminal: bool) -> bool:
        if self._colour != "auto":
            return self._colour == "always"
        if self.environment.get("NO_COLOR") is not None:
            return False
        return self.environment.force_color or (terminal and not self.environment.no_color)

    @property
    def redraws(self) -> bool:
        """Standard error is a terminal on which a line can be drawn again."""
        return self.err_is_terminal and not self.environment.dumb_terminal

    def style(self, text: str, style: str) -> str:
        """The text in a style, if colour is on."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.colour else text

    # Standard error.

    def _write_error(self, text: str) -> None:
        if sys.stderr is None:
            return
        try:
            sys.stderr.write(text if self.unicode else to_ascii(text))
            sys.stderr.flush()
        except (OSError, ValueError):
            # Nobody reads standard error any more; the answer still goes out.
            pass

    def line(self, text: str = "", style: str = "") -> None:
        """One line on standard error, whatever -q says."""
        self.clear()
        shown = sanitise(text)
        if self.err_is_terminal:
            shown = wrapped(shown, columns(sys.stderr))
        self._write_error((self.style(shown, style) if style else shown) + "\n")

    def info(self, text: str = "", style: str = "") -> None:
        """One line on standard error unless -q."""
        if not self.quiet:
            self.line(text, style)

    def detail(self, text: str, level: int = 1) -> None:
        """One line on standard error with -v (level 1) or -vv (level 2)."""
        if self.verbose >= level:
            self.line(text, "dim")

    def warn(self, text: str) -> None:
        """A warning, once per run."""
        if text in self._warned:
            return
        self._warned.add(text)
        self.clear()
        self._write_error(f"{self.style('warning:', 'warning')} {one_line(text)}\n")

    def error(self, code: str, what: str, why: str = "", fix: str = "") -> None:
        """The three lines of an error."""
        self.clear()
        lines = [f"{self.style(f'error[{code}]:', 'error')} {one_line(what)}"]
        for label, text in (("why:  ", why), ("fix:  ", fix)):
            if text:
                shown = [(" " * 8 if number else f"  {label}") + part
                         for number, part in enumerate(sanitise(text).split("\n"))]  # fmt: skip
                if self.err_is_terminal and label.startswith("why"):
                    # A fix holds commands, which are to be copied as they are.
                    shown = [wrapped(line, columns(sys.stderr)) for line in shown]
                lines += shown
        self._write_error("\n".join(lines) + "\n")

    def draw(self, text: str) -> None:
        """Draws the current line of a terminal anew."""
        self._drawn = True
        self._write_error("\r" + text + "\x1b[K")

    def clear(self) -> None:
        """Wipes the line that progress has drawn."""
        if self._drawn:
            self._drawn = False
            self._write_error("\r\x1b[K")

    def prompt(self, text: str) -> None:
        """Asks on standard error, leaving the cursor behind the question."""
        self.clear()
        self._write_error(text)

    def thought(self, text: str) -> None:
        """Reasoning on standard error, dim, as it arrives."""
        self.clear()
        self._write_error(self.style(sanitise(text) if self.err_is_terminal else text, "dim"))

    # Standard output.

    def out(self, text: str) -> None:
        """Writes to standard output now.

        Raises:
            ColibriError: the stream cannot be written. BrokenPipeError: its reader has gone.
        """
        if not text:
            return
        self.clear()
        if sys.stdout is None:
            raise not_written(OSError(errno.EBADF, "standard output is closed"))
        data = text.encode("utf-8", "replace")
        try:
            sys.stdout.flush()
            buffer = getattr(sys.stdout, "buffer", None)
            if buffer is None:
                sys.stdout.write(text)
            else:
                buffer.write(data)
            (buffer or sys.stdout).flush()
        except BrokenPipeError:
            raise
        except OSError as fault:
            raise not_written(fault) from None

    def out_line(self, text: str, wrap: bool = True) -> None:
        """One line of a report on standard output."""
        shown = one_line(text)
        if wrap and self.out_is_terminal:
            shown = wrapped(shown, columns(sys.stdout))
        self.out(shown + "\n")

    def out_marked(self, mark: str, style: str, text: str) -> None:
        """One line of a report on standard output that begins with a word in a style."""
        shown = mark + one_line(text)
        if self.out_is_terminal:
            shown = wrapped(shown, columns(sys.stdout))
        if self._coloured(self.out_is_terminal):
            shown = f"\x1b[{_STYLES[style]}m{mark}\x1b[0m{shown[len(mark) :]}"
        self.out(shown + "\n")

    def out_object(self, value: dict[str, object]) -> None:
        """One JSON object on one line of standard output, with the version of its form."""
        text = json.dumps({"version": JSON_VERSION, **value}, ensure_ascii=False)
        # JSON has escapes for what a terminal would obey, and must have them only for some of it.
        self.out(_UNESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n")

    def answer(self, text: str) -> None:
        """Writes part of an answer.

        Where answers end their line, the line ends at the end of the text are held back, so that the answer
        ends with exactly one.
        """
        if self.out_is_terminal:
            text = sanitise(text)
        if not self.ends_lines:
            self.out(text)
            return
        text = self._held + text
        body = text.rstrip("\n")
        self._held = text[len(body) :]
        if body:
            self._wrote = True
            self.out(body)

    def end_answer(self) -> None:
        """Ends the answer."""
        if self.ends_lines and self._wrote:
            self.out("\n")
        self._held, self._wrote = "", False


@functools.cache
def console() -> Console:
    """The console of this process."""
    return Console()
