"""Numbers and values in words for people."""

from __future__ import annotations

import json
import re
import textwrap

from colibri.quantities import bytes_in_words as bytes_in_words
from colibri.quantities import count_in_words as count_in_words
from colibri.quantities import plural as plural
from colibri.setting_kinds import DURATION
from colibri.settings import Setting

# C0 but tab and line feed, DEL, C1: what a terminal obeys. Two separators that some terminals treat as
# line ends stay.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# What would break a line, or show its characters in another order than they have.
_BREAKING = re.compile("[\t\n\u2028\u2029]+")
_ORDERING = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def sanitise(text: str) -> str:
    """The text without the characters a terminal obeys; tab and line feed stay."""
    return _CONTROL.sub("", text)


def one_line(text: str) -> str:
    """A name or a value as part of a line: sanitised, and without what breaks or reorders the line."""
    return _ORDERING.sub("", _BREAKING.sub(" ", sanitise(text)))


def seconds_in_words(seconds: float) -> str:
    """A time: 0.4 s, 27 s, 9 min 41 s, 2 h 10 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def duration_in_words(seconds: float) -> str:
    """A time as it is written in a setting: 250ms, 90s, 5m, 1h30m."""
    milliseconds = round(seconds * 1000)
    parts = []
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, milliseconds = divmod(milliseconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parameters_in_words(count: int) -> str:
    """A number of weights: 13 M, 744 B."""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.0f} {unit}" if count >= 10 * size else f"{count / size:.1f} {unit}"
    return str(count)


# The label at the head of a line: a word and at least two spaces, or the indentation alone.
_LABEL = re.compile(r"\s*(?:\S.{0,20}?\S? {2,})?")


def wrapped(text: str, columns: int) -> str:
    """The text in lines of less than `columns`, broken between words and indented behind the label."""
    if len(text) < columns:
        return text
    match = _LABEL.match(text)
    indent = " " * (len(match[0]) if match else 0)
    return "\n".join(
        textwrap.wrap(
            text,
            max(columns - 1, len(indent) + 20),
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def value_in_words(setting: Setting, value: object) -> str:
    """The value of a setting, on one line."""
    if setting.name == "model" and value is None:
        return "demo"
    if value is None:
        return setting.default_text or "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return one_line(json.dumps(list(value), ensure_ascii=False)) if value else "none"
    if setting.kind is DURATION and isinstance(value, float):
        return duration_in_words(value)
    text = one_line(str(value))
    return text if len(text) <= 60 else text[:59] + "…"
