"""The error taxonomy: one slug per fault, one class per kind, one exit status per slug.

Owns the table from slug to class and exit status and the three-line rendering shared by the Python API and
the command line. Refuses nothing and imports nothing of the package: every other module may import it. What
must hold: each slug the core can raise is in `TAXONOMY`; a slug that is not becomes `EngineError`, never a
bare exception. Texts name options as the command line writes them; in Python they read as keywords.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple


class ColibriError(Exception):
    """An error with a stable code and three readable parts.

    Attributes:
        code: the slug, the same in the command line, the documentation and here.
        message: what happened, one line.
        why: the cause with its numbers, or None.
        fix: what to do about it, or None.
        args: the same four, with options in the words of the command line.
    """

    code: str
    message: str
    why: str | None
    fix: str | None

    def __init__(self, code: str, message: str, why: str | None = None, fix: str | None = None) -> None:
        super().__init__(code, message, why, fix)
        self.code = code
        self.message = _as_keywords(message)
        self.why = why and _as_keywords(why)
        self.fix = fix and _as_keywords(fix)

    def __str__(self) -> str:
        """The three lines: `error[slug]: what`, why, fix."""
        lines = [f"error[{self.code}]: {self.message}"]
        if self.why:
            lines.append(f"  why:  {self.why}")
        if self.fix:
            lines.append(f"  fix:  {self.fix}")
        return "\n".join(lines)

    @property
    def exit_status(self) -> int:
        """The exit status of a command that ends with this error."""
        return TAXONOMY.get(self.code, _UNKNOWN).exit_status


class ModelNotFound(ColibriError):
    """There is no model at the given place."""


class ModelError(ColibriError):
    """The model is incomplete, corrupt, unsupported, or lacks a usable tokenizer or chat template."""


class ResourceError(ColibriError):
    """The model does not fit the memory it may use."""


class ContextError(ColibriError):
    """The prompt is longer than the context."""


class StorageError(ColibriError):
    """Reading the weights or writing the output failed."""


class DownloadError(ColibriError):
    """A file or a list of files could not be fetched from the hub."""


class InvalidValue(ColibriError, ValueError):
    """A parameter is unknown here or outside its range."""


class Busy(ColibriError):
    """Another generation holds the model and the caller did not want to wait."""


class Cancelled(ColibriError):
    """The caller stopped the operation, or the time for it is over (`timeout`)."""


class GrammarError(ColibriError):
    """A grammar, a schema or a list of tools is invalid, unsupported or too complex, or leads nowhere.

    Attributes:
        faults: everything that is wrong, in the order of its places: mappings with `code`, `message`, `why`
            and `fix`, `line`, `column` and `text` (the line itself) of a grammar, and `pointer` into a
            schema; what does not apply is None. With one fault its why and fix are those of the error.
    """

    faults: tuple[Mapping[str, Any], ...]

    def __init__(self, code: str, message: str, why: str | None = None, fix: str | None = None) -> None:
        super().__init__(code, message, why, fix)
        parts = {"code": code, "message": self.message, "why": self.why, "fix": self.fix}
        self.faults = ({**parts, "line": None, "column": None, "text": None, "pointer": None},)


class EngineError(ColibriError):
    """The computation failed: a non-finite activation, or a fault of colibri itself."""


class _Kind(NamedTuple):
    error: type[ColibriError]
    exit_status: int


_UNKNOWN: Final = _Kind(EngineError, 1)

TAXONOMY: Final[dict[str, _Kind]] = {
    "model_not_found": _Kind(ModelNotFound, 3),
    "model_incomplete": _Kind(ModelError, 3),
    "model_corrupt": _Kind(ModelError, 3),
    "model_unsupported": _Kind(ModelError, 3),
    "tokenizer_missing": _Kind(ModelError, 3),
    "template_invalid": _Kind(ModelError, 3),
    "convert_source_changed": _Kind(ModelError, 3),
    "ram_budget_too_small": _Kind(ResourceError, 4),
    "context_length_exceeded": _Kind(ContextError, 4),
    "output_not_writable": _Kind(StorageError, 4),
    "disk_full": _Kind(StorageError, 4),
    "disk_read_failed": _Kind(StorageError, 5),
    "download_failed": _Kind(DownloadError, 6),
    "unsupported_parameter": _Kind(InvalidValue, 2),
    "invalid_value": _Kind(InvalidValue, 2),
    "convert_parameters_differ": _Kind(InvalidValue, 2),
    "grammar_syntax": _Kind(GrammarError, 7),
    "schema_unsupported": _Kind(GrammarError, 7),
    "grammar_too_complex": _Kind(GrammarError, 7),
    "grammar_dead_end": _Kind(GrammarError, 7),
    "queue_full": _Kind(Busy, 75),
    "cancelled": _Kind(Cancelled, 130),
    "timeout": _Kind(Cancelled, 124),
    "non_finite": _Kind(EngineError, 1),
    "session_poisoned": _Kind(EngineError, 1),
    "internal": _Kind(EngineError, 1),
}
"""Every slug with its class and exit status."""


SHOWN_LIMIT: Final = 80
"""The most characters of a value that a message repeats."""

# An option that has a keyword of the same name, with its value where one follows.
_OPTION: Final = re.compile(
    r"--(ram|ctx|threads|io|raw|schema-lenient)\b(?: (\d+(?:\.\d+)?)([kMGT]i?B|%)?(?![\w.]\w))?"
)
# Options that are given or not.
_TRUE: Final = {
    "raw": "raw=True",
    "schema-lenient": "lenient=True, or tools_lenient=True in a call that generates",
}


def in_python(fault: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a fault with options as Python writes them; a grammar's own text stays as it is."""
    kept = ("code", "text", "pointer")
    return {
        name: _as_keywords(value) if isinstance(value, str) and name not in kept else value
        for name, value in fault.items()
    }


def _as_keywords(text: str) -> str:
    """The text with options as Python writes them: `ram="17GB"` for `--ram 17GB`, `ctx=4096`."""

    def keyword(match: re.Match[str]) -> str:
        name, number, unit = match.groups()
        if name in _TRUE:
            return _TRUE[name]
        if number is None:
            return str(name)
        return f'{name}="{number}{unit}"' if unit else f"{name}={number}"

    return _OPTION.sub(keyword, text)


def error(code: str, message: str, why: str | None = None, fix: str | None = None) -> ColibriError:
    """Builds the error of the class that `code` belongs to."""
    return TAXONOMY.get(code, _UNKNOWN).error(code, message, why, fix)


def invalid_value(name: str, value: object, expected: str) -> ColibriError:
    """Builds the error for a parameter outside its range.

    Args:
        name: the parameter as the caller wrote it.
        value: what was given.
        expected: the allowed range in words, such as `a number from 0 to 1`.
    """
    return error(
        "invalid_value",
        f"{name} is {shown(value)}",
        f"{name} must be {expected}",
        f"pass {expected} as {name}",
    )


def shown(value: object) -> str:
    """A value as it is written in Python, cut where it is long; its kind where it cannot be written."""
    try:
        text = repr(value)
    except Exception:
        # Integers of thousands of digits have no text, and foreign objects may do anything.
        return f"a {type(value).__name__}"
    return text if len(text) <= SHOWN_LIMIT else text[: SHOWN_LIMIT - 1] + "…"
