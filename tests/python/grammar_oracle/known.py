r"""Patterns and JSON schemas that mean the same to both engines.

Left out is what they read differently, each rightly: `\d`, `\w`, `\s` and `.`, which are ECMAScript's in our
patterns and Unicode's in llguidance; strings that hold anything, which we let be written with every escape
and with U+007F; constants with control characters, which it lets be written in two ways; `-0`, long
exponents, the year 0 and leap seconds, which are valid and which we never let a model write.
"""

from __future__ import annotations

from typing import Any, Final

PATTERNS: Final = (
    "a+b?",
    "[^ab]{2,3}",
    "(?:ab|a)(?:bc|c)",
    "(a*)*b",
    "(?:a|b)*abb",
    "(?:(?:a?){3})a{3}",
    r"\x41\u00e9?",
    r"[^\n]*",
    "a{2,}b{0}",
    "[0-9]{3}-[0-9]{2}",
    r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?",
    r"[a-z_-]+@[a-z]+\.(?:com|org)",
    "(?:x{2,3}){2,3}|x{11,}",
    "|a|ab|",
    "[à-ü]{0,3}x",
)

BOOLEAN: Final = {"type": "boolean"}
NULL: Final = {"type": "null"}
SCHEMAS: Final[tuple[Any, ...]] = (
    BOOLEAN,
    NULL,
    {"enum": ["a", "ab", 1, None, [1, 2]]},
    {"const": {"a": [1, "x"]}},
    {"enum": ["x", 'y"z', "é"]},
    {"type": "array", "items": BOOLEAN, "minItems": 1, "maxItems": 3},
    {"type": "array", "items": {"type": "array", "items": NULL, "maxItems": 2}},
    {"type": "array", "prefixItems": [{"const": 1}, NULL], "items": False},
    {"type": "array", "prefixItems": [{"const": 1}, NULL], "items": False, "minItems": 2},
    {
        "type": "object",
        "properties": {"a": {"enum": [1, 12]}, "b": BOOLEAN, "c": NULL},
        "required": ["b"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {"a": BOOLEAN, "ab": BOOLEAN, "abc": {"const": []}},
        "additionalProperties": False,
    },
    {"type": "integer", "minimum": 3, "maximum": 1250},
    {"type": "integer", "exclusiveMinimum": -17},
    {"type": "integer", "exclusiveMinimum": 7, "exclusiveMaximum": 205},
    {"type": "number", "minimum": 0.5, "maximum": 12.25},
    {"anyOf": [NULL, {"type": "integer", "minimum": 0}]},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    {
        "$defs": {
            "list": {
                "type": "object",
                "properties": {
                    "head": BOOLEAN,
                    "tail": {"anyOf": [{"$ref": "#/$defs/list"}, NULL]},
                },
                "required": ["head", "tail"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/list",
    },
)
