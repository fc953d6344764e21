"""The JSON schema in what a caller hands over: a mapping, JSON text, or a class that describes itself.

Owns the way from these to JSON text, and the wrapper in which OpenAI's API carries a schema
(`{"name": ..., "schema": {...}}`, also inside of `json_schema`), which is taken off. Refuses what cannot be
written as JSON. What must hold: the text of a schema stays as it was written, number for number, and so do
the lines and columns that errors name.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Final

from colibri.errors import error, invalid_value

# Where the wrapper has the schema, and what else it may hold.
_WRAPPERS: Final = ("json_schema", "schema")
_BESIDE: Final = frozenset({"name", "description", "strict", "type"})
_WRAPPER_TYPES: Final = ("json_schema", "json_object")
# Wrappers inside each other.
_DEEPEST: Final = 3

_SPACE: Final = re.compile(r"\s*")
_DECODER: Final = json.JSONDecoder()


def schema_text(schema: object) -> str:
    """The JSON text of a schema, the order of its properties kept.

    Raises:
        InvalidValue: it is nothing that could be a schema, or cannot be written as JSON.
    """
    if isinstance(schema, str):
        return bare_schema(schema)
    if isinstance(schema, os.PathLike):
        why = "schema must be the schema itself"
        fix = f"Grammar.from_json_schema(Path({os.fspath(schema)!r}).read_text())"
        raise error("invalid_value", f"schema is a path: {os.fspath(schema)!r}", why, fix)
    made = getattr(schema, "model_json_schema", None)
    value = made() if callable(made) else schema
    if not isinstance(value, (Mapping, bool)):
        raise invalid_value("schema", schema, "a mapping, JSON text, or a class with model_json_schema()")
    if isinstance(value, Mapping):
        for name in _wrappers(value):
            value = value[name]
        value = dict(value)
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as fault:
        raise error(
            "invalid_value", "the schema cannot be written as JSON", str(fault), "use JSON values only"
        ) from None


def bare_schema(text: str) -> str:
    """The text of a schema without the wrapper of OpenAI's API, which leaves blanks where it was.

    A text that is no JSON comes back as it is.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return text
    start, end = 0, len(text)
    for name in _wrappers(document):
        start, end = _member(text, start, name)
    # Lines and columns stay what they are in the text.
    return re.sub(r"[^\n]", " ", text[:start]) + text[start:end]


def _wrappers(document: object) -> list[str]:
    """The names under which the schema lies in its wrappers, from the outermost on."""
    names: list[str] = []
    while isinstance(document, Mapping) and len(names) < _DEEPEST:
        inside = [name for name in _WRAPPERS if isinstance(document.get(name), Mapping)]
        is_wrapper = len(inside) == 1 and document.keys() <= {*_BESIDE, *inside}
        if not is_wrapper or document.get("type", _WRAPPER_TYPES[0]) not in _WRAPPER_TYPES:
            break
        names += inside
        document = document[inside[0]]
    return names


def _member(text: str, start: int, wanted: str) -> tuple[int, int]:
    """Where the value of a member lies, of the object that begins at `start`; the last one counts."""
    found = (start, start)
    at = _behind_space(text, start)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, _behind_space(text, at + 1))
        begin = _behind_space(text, _behind_space(text, at) + 1)
        _, end = _DECODER.raw_decode(text, begin)
        if key == wanted:
            found = (begin, end)
        at = _behind_space(text, end)
    return found


def _behind_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()
