"""Counts and sizes in words, for reports and for messages of errors.

Owns how a number of bytes and a number of things are written; every part of the package writes them alike.
"""

from __future__ import annotations


def bytes_in_words(count: float) -> str:
    """A size in decimal units: 512 B, 9.3 MB, 372.1 GB."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}" if unit == "TB" else f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def count_in_words(count: int) -> str:
    """A whole number with separators."""
    return f"{count:,}"


def plural(count: int, noun: str) -> str:
    """A count with its noun: 1 message, 3 messages."""
    return f"{count_in_words(count)} {noun}{'' if count == 1 else 's'}"
