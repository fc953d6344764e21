"""Kinds of setting: how a value is written, checked and described.

A kind turns text (a flag, a variable) or a TOML value into the type the program works with, and says in
words what it wants when it refuses. It knows nothing of where the value came from. Nothing heavy is
imported here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """``parse`` raises ValueError saying what is wanted; ``metavar`` and ``example`` are for people."""

    metavar: str
    example: str
    parse: Callable[[object], object]
    choices: tuple[str, ...] = ()


_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([MGT](?:i?B)?|%)\s*$", re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.IGNORECASE)
_LONGEST = 10_000 * 86_400.0
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _text(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError("a text is wanted")
    if "\0" in value:
        raise ValueError("a text must not hold the character 0")
    return value


def _some_text(value: object) -> object:
    if _text(value) == "":
        raise ValueError("a text that is not empty is wanted")
    return value


def _path(value: object) -> object:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("the path of a file or folder is wanted")
    return value


def _boolean(value: object) -> object:
    if isinstance(value, bool):
        return value
    words = {
        "1": True,
        "true": True,
        "yes": True,
        "on": True,
        "0": False,
        "false": False,
        "no": False,
        "off": False,
    }
    if isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()]
    raise ValueError("true or false is wanted")


def _integer(low: int, high: int) -> Callable[[object], object]:
    def parse(value: object) -> object:
        wanted = f"a whole number from {low} to {high} is wanted"
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(wanted)
        try:
            number = int(value)
        except ValueError:
            raise ValueError(wanted) from None
        if not low <= number <= high:
            raise ValueError(wanted)
        return number

    return parse


def _number(low: float, high: float, *, open_low: bool = False) -> Callable[[object], object]:
    def parse(value: object) -> object:
        wanted = (
            f"a number {f'above {low:g} and at most' if open_low else f'from {low:g} to'} {high:g} is wanted"
        )
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError(wanted)
        try:
            number = float(value)
        except (ValueError, OverflowError):
            raise ValueError(wanted) from None
        if not math.isfinite(number) or not low <= number <= high or (open_low and number == low):
            raise ValueError(wanted)
        return number

    return parse


def _size(value: object) -> object:
    if isinstance(value, str) and value.strip().lower() == "auto":
        return "auto"
    match = _SIZE.match(value) if isinstance(value, str) else None
    if match is None or float(match[1]) <= 0 or (match[2] == "%" and float(match[1]) > 100):
        raise ValueError(
            "a size in MB, GB or TB (20GB, 20GiB), a share of the memory (75%) or auto is wanted"
        )
    return match[1] + match[2] + ("" if match[2][-1] in "%bB" else "B")


def _context(value: object) -> object:
    if isinstance(value, str) and value.strip().lower() == "auto":
        return "auto"
    try:
        return _integer(1, 2**31 - 1)(value)
    except ValueError:
        raise ValueError("a number of tokens or auto is wanted") from None


def _duration(value: object) -> object:
    wanted = "a time such as 90s, 10m or 1h30m is wanted, at most 10000d"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(wanted)
    try:
        seconds = float(value)
    except OverflowError:
        raise ValueError(wanted) from None
    except ValueError:
        compact = str(value).replace(" ", "")
        parts = _DURATION.findall(compact)
        if not parts or "".join(number + unit for number, unit in parts) != compact:
            raise ValueError(wanted) from None
        seconds = sum(float(number) * _SECONDS[unit.lower()] for number, unit in parts)
    if not 0 < seconds <= _LONGEST:
        raise ValueError(wanted)
    return seconds


def _choice(*choices: str) -> Kind:
    def parse(value: object) -> object:
        if value in choices:
            return value
        raise ValueError(f"one of {', '.join(choices)} is wanted")

    return Kind("|".join(choices), choices[0], parse, choices)


TEXT = Kind("TEXT", "a text", _text)
STOP = Kind("TEXT", "a text", _some_text)
GRAMMAR = Kind("FILE|TEXT", "tool.gbnf", _some_text)
SCHEMA = Kind("FILE|JSON", "person.json", _some_text)
PATH = Kind("PATH", "a path", _path)
BOOLEAN = Kind("", "true or false", _boolean)
POSITIVE = Kind("N", "8", _integer(1, 2**31 - 1))
COUNT = Kind("N", "0", _integer(0, 2**31 - 1))
SEED = Kind("N", "1", _integer(0, 2**64 - 1))
TEMPERATURE = Kind("F", "0.7", _number(0.0, 100.0))
PROBABILITY = Kind("F", "0.95", _number(0.0, 1.0))
REPEAT_PENALTY = Kind("F", "1.1", _number(0.0, 100.0, open_low=True))
PENALTY = Kind("F", "0.5", _number(-2.0, 2.0))
SIZE = Kind("SIZE", "20GB", _size)
CONTEXT = Kind("N|auto", "8192", _context)
DURATION = Kind("DURATION", "10m", _duration)
IO = _choice("auto", "direct", "buffered", "mmap")
COLOR = _choice("auto", "always", "never")
PROGRESS = _choice("auto", "bar", "plain", "json", "none")
SHOW_THINKING = _choice("stderr", "stdout", "none")
REASONING_EFFORTS = ("low", "medium", "high", "max")
REASONING_EFFORT = _choice(*REASONING_EFFORTS)
GRAMMAR_MODES = ("constrain", "draft")
GRAMMAR_MODE = _choice(*GRAMMAR_MODES)
DRAFTS = ("auto", "off", "grammar")
DRAFT = _choice(*DRAFTS)
WHITESPACES = ("compact", "flexible")
WHITESPACE = _choice(*WHITESPACES)
DRAFT_MOST = 63
DRAFT_LENGTH = Kind("N", "16", _integer(1, DRAFT_MOST))
