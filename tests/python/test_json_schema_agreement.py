"""Grammars of schemas beside two other readers of JSON Schema.

What `hypothesis-jsonschema` makes for a schema is accepted, once it is written in the order of the definition
and without the properties that the grammar leaves out. What random walks along our masks spell is valid for
`jsonschema-rs`.
"""

from __future__ import annotations

import importlib.util
import json
import math
import random
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from colibri import Grammar, _native
from colibri.errors import ColibriError
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis_jsonschema import from_schema

ROOT = Path(__file__).resolve().parents[2]
DEFINITIONS = ("$defs", "definitions")


def quick(examples: int) -> settings:
    """The same examples in every run, without a limit of time for one."""
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def closed(properties: dict[str, Any], required: list[str] | None = None, **more: Any) -> dict[str, Any]:
    """The schema of an object."""
    return {"type": "object", "properties": properties, "required": required or [], **more}


TEXT = {"type": "string"}
WHOLE = {"type": "integer"}
NODE = closed(
    {"value": WHOLE, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}}, ["value", "next"]
)
SCHEMAS: dict[str, Any] = {
    "anything": True,
    "strings": {"type": "string", "minLength": 2, "maxLength": 5},
    "long strings": {"type": "string", "minLength": 0, "maxLength": 5000},
    "pattern": {"type": "string", "pattern": "^[a-f]{2,4}(-[0-9]+)?$"},
    "unanchored pattern": {"type": "string", "pattern": "a+b|c"},
    "whole numbers": {"type": "integer", "minimum": -12, "exclusiveMaximum": 340},
    "numbers": {"type": "number", "exclusiveMinimum": -1.5, "maximum": 7.25},
    "free numbers": {"type": ["number", "null"]},
    "several types": {"type": ["string", "integer", "boolean", "null"], "maxLength": 2, "minimum": 0},
    "enum": {"enum": [1, "1", None, True, 2.5, {"b": 1, "a": [2]}, []]},
    "const": {"const": {"z": '\u0001"é', "a": 0}},
    "lists of constants": {"anyOf": [{"const": "a", "title": "A"}, {"enum": ["b", 3]}, {"type": "null"}]},
    "optional properties": closed({"a": WHOLE, "b": TEXT, "c": {"type": "boolean"}, "d": {}}, ["c"]),
    "no property is required": closed({"x": TEXT, "y": {"enum": [1, 2]}}),
    "further properties": closed({"a": WHOLE}, ["a"], additionalProperties={"type": "boolean"}),
    "any further properties": closed({"f": WHOLE, "fo": WHOLE}, ["f"], additionalProperties=True),
    "a map": {"type": "object", "additionalProperties": {"type": "array", "items": WHOLE}},
    "required without definition": {"type": "object", "required": ["q", "r"]},
    "arrays": {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 4},
    "tuples": {"type": "array", "prefixItems": [TEXT, WHOLE], "items": {"type": "null"}, "maxItems": 4},
    "closed tuples": {"type": "array", "prefixItems": [TEXT, {"type": "boolean"}], "items": False},
    "old tuples": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [TEXT, WHOLE],
        "additionalItems": {"type": "boolean"},
    },
    "anyOf": {"anyOf": [closed({"a": WHOLE}, ["a"]), closed({"b": TEXT}, ["b"]), {"type": "array"}]},
    "oneOf": {
        "oneOf": [
            closed({"kind": {"const": "move"}, "to": TEXT}, ["kind", "to"]),
            closed({"kind": {"const": "wait"}, "ms": {"type": "integer", "minimum": 0}}, ["kind"]),
        ]
    },
    "allOf": {
        "allOf": [closed({"id": {"type": "integer", "minimum": 3}}, ["id"]), {"properties": {"tag": TEXT}}],
        "properties": {"id": {"maximum": 90}, "more": {"type": "boolean"}},
        "required": ["more"],
    },
    "references": {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
    "a tree": {
        "$ref": "#/definitions/tree",
        "definitions": {
            "tree": closed(
                {"name": TEXT, "children": {"type": "array", "items": {"$ref": "#/definitions/tree"}}},
                ["name"],
            )
        },
    },
    "fifty fields": closed(
        {
            f"field_{at}": [TEXT, WHOLE, {"type": "number", "minimum": 0}, {"enum": ["x", "y"]}][at % 4]
            for at in range(50)
        },
        [f"field_{at}" for at in range(0, 50, 3)],
    ),
}
FORMATS = ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
WALKED = SCHEMAS | {f"format {name}": {"type": "string", "format": name} for name in FORMATS}


class Writer:
    """Writes values as the grammar of a schema does: properties in their order, none that are left out."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.valid = jsonschema_rs.validator_for(root)

    def text(self, value: Any) -> str | None:
        """The JSON text; None when the value without what is left out is valid no longer."""
        kept = self.kept([self.root], value)
        return digits(kept) if self.valid.is_valid(kept) else None

    def kept(self, schemas: list[Any], value: Any) -> Any:
        """The value for schemas that must all hold."""
        parts = [part for schema in schemas for part in self.parts(schema, value)]
        for part in parts:
            for listed in [*part.get("enum", []), *([part["const"]] if "const" in part else [])]:
                if same(listed, value):
                    return listed
        if isinstance(value, dict):
            return self.kept_members(parts, value)
        if isinstance(value, list):
            return [self.kept(item_schemas(parts, at), item) for at, item in enumerate(value)]
        return value

    def kept_members(self, parts: list[dict[str, Any]], value: dict[str, Any]) -> dict[str, Any]:
        names = [name for part in parts for name in part.get("properties", {})]
        names += [name for part in parts for name in part.get("required", [])]
        names = [name for name in dict.fromkeys(names) if name in value]
        is_open = any("additionalProperties" in part for part in parts)
        if is_open or not any("properties" in part for part in parts):
            names += [name for name in value if name not in names]
        return {name: self.kept(property_schemas(parts, name), value[name]) for name in names}

    def parts(self, schema: Any, value: Any) -> Iterator[dict[str, Any]]:
        """The schema without references and combinations, as far as it bears on the value."""
        if isinstance(schema, bool):
            return
        own_is_out = False
        for keyword, argument in schema.items():
            if keyword == "$ref":
                yield from self.parts(self.target(argument), value)
            elif keyword == "allOf":
                for part in argument:
                    yield from self.parts(part, value)
            elif keyword in ("anyOf", "oneOf"):
                yield from self.parts(next(part for part in argument if self.fits(part, value)), value)
            elif keyword == "properties":
                own_is_out = True
                yield schema
        if not own_is_out:
            yield schema

    def target(self, reference: str) -> Any:
        found = self.root
        for name in reference.removeprefix("#").split("/")[1:]:
            found = found[name]
        return found

    def fits(self, schema: Any, value: Any) -> bool:
        """Whether a part of the document fits a value."""
        if isinstance(schema, bool):
            return schema
        definitions = {name: self.root[name] for name in DEFINITIONS if name in self.root}
        return jsonschema_rs.is_valid({**definitions, **schema}, value)


def property_schemas(parts: list[dict[str, Any]], name: str) -> list[Any]:
    """The schemas of a property."""
    found = []
    for part in parts:
        if name in part.get("properties", {}):
            found.append(part["properties"][name])
        elif "additionalProperties" in part:
            found.append(part["additionalProperties"])
    return found


def item_schemas(parts: list[dict[str, Any]], at: int) -> list[Any]:
    """The schemas of an item."""
    found = []
    for part in parts:
        old = isinstance(part.get("items"), list)
        first, rest = ("items", "additionalItems") if old else ("prefixItems", "items")
        if at < len(part.get(first, [])):
            found.append(part[first][at])
        elif rest in part:
            found.append(part[rest])
    return found


def same(one: Any, other: Any) -> bool:
    """Equality of JSON values, in which true is not 1."""
    return jsonschema_rs.is_valid({"const": one}, other)


def digits(value: Any) -> str:
    """JSON text whose numbers have neither exponents nor zeros at their end."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{digits(name)}:{digits(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(digits, value)) + "]"
    if isinstance(value, float):
        assume(math.isfinite(value))
        text = f"{Decimal(repr(value)):f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
        return "0" if text == "-0" else text
    return json.dumps(value, ensure_ascii=False)


def spelled_out(schema: Any, root: Any, depth: int = 2) -> Any:
    """The schema as the generator reads it: tuples of draft-07, references written out."""
    if isinstance(schema, list):
        return [spelled_out(part, root, depth) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        target = Writer(root).target(schema["$ref"])
        return spelled_out(target, root, depth - 1) if depth else False
    parts = {name: part for name, part in schema.items() if name not in DEFINITIONS}
    if "prefixItems" in parts:
        parts["additionalItems"] = parts.pop("items", True)
        parts["items"] = parts.pop("prefixItems")
    listed = {name: parts.pop(name) for name in ("enum", "const") if name in parts}
    return listed | {name: spelled_out(part, root, depth) for name, part in parts.items()}


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_another_generator_makes_is_accepted(name):
    schema = SCHEMAS[name]
    grammar = Grammar.from_json_schema(schema)
    writer = Writer(schema)
    tried = []

    @quick(40)
    @given(from_schema(spelled_out(schema, schema)))
    def accepted(value):
        text = writer.text(value)
        assume(text is not None)
        tried.append(text)
        assert grammar.accepts(text), text

    accepted()
    assert len(set(tried)) >= {"enum": 7, "const": 1, "lists of constants": 4}.get(name, 8)


TOKENS = [
    *(bytes([value]) for value in range(256)),
    *(
        b'{"',
        b'":',
        b'","',
        b'"}',
        b"[]",
        b"},{",
        b"true",
        b"null",
        b"12",
        b"\\u00",
        b"-0.",
        b"aa",
        b"https://",
    ),
    "é".encode(),
    "€".encode()[:2],
    b"",
]
STOP = len(TOKENS) - 1
# What ends a string, an object or an array, and what its parts are made of; without them a walk seldom ends.
LIKED = frozenset(b'"}],:ab05')


@pytest.fixture(scope="module")
def vocabulary():
    """A vocabulary of all bytes and of some tokens that lie across the signs of JSON."""
    return _native.Vocabulary(TOKENS, {"<stop>": STOP})


def walk(grammar: Grammar, vocabulary: _native.Vocabulary, dice: random.Random) -> str | None:
    """A text along random tokens of the masks; None for one that got too long."""
    state = _native.GrammarState(grammar.native, vocabulary, [STOP])
    text = b""
    for step in range(600):
        allowed = [int(token) for token in np.flatnonzero(state.mask())]
        assert allowed, text
        liked = [token for token in allowed if TOKENS[token] and set(TOKENS[token]) <= LIKED]
        if STOP in allowed and (len(allowed) == 1 or dice.random() < 0.4):
            return text.decode("utf-8")
        # The longer the text, the more often what ends something.
        ends = [token for token in liked if TOKENS[token] in (b'"', b"}", b"]", b'"}')]
        if ends and dice.random() < step / 200:
            liked = ends
        pool = liked if liked and dice.random() < 0.8 else [token for token in allowed if token != STOP]
        token = dice.choice(pool)
        assert state.accept(token)
        text += TOKENS[token]
    return None


def walks(grammar: Grammar, vocabulary: _native.Vocabulary, count: int, seed: str) -> list[str]:
    """Texts of so many walks, without those that got too long."""
    dice = random.Random(seed)
    found = (walk(grammar, vocabulary, dice) for _ in range(count))
    return [text for text in found if text is not None]


@pytest.mark.parametrize("name", WALKED)
def test_walks_along_the_masks_are_valid(name, vocabulary):
    schema = WALKED[name]
    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    grammar = Grammar.from_json_schema(schema)
    texts = walks(grammar, vocabulary, 25, name)
    assert len(texts) >= 10
    for text in texts:
        assert validator.is_valid(json.loads(text)), text
        assert grammar.accepts(text)


def suite() -> ModuleType:
    """The tool that runs the JSON-Schema-Test-Suite."""
    name = "colibri_json_schema_suite"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / "json_schema_suite.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def test_walks_over_the_schemas_of_the_test_suite_are_valid(vocabulary):
    tool = suite()
    count = schemas = 0
    for draft, name, number, group in tool.groups():
        schema = group["schema"]
        if isinstance(schema, dict):
            schema = {"$schema": tool.DRAFTS[draft], **schema}
        try:
            grammar = Grammar.from_json_schema(tool.compact(schema))
            validator = jsonschema_rs.validator_for(schema, validate_formats=True)
        except (ColibriError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError):
            continue
        schemas += 1
        for text in walks(grammar, vocabulary, 3, f"{draft} {name} {number}"):
            assert validator.is_valid(json.loads(text)), f"{schema} {text}"
            count += 1
    assert schemas > 300
    assert count > 600


NAMES = st.sampled_from(["a", "b", "ab", 'é"', "c"])
LEAVES = st.one_of(
    st.sampled_from([True, {}, {"type": "null"}, {"type": "boolean"}, {"$ref": "#/$defs/x"}]),
    st.sampled_from([{"const": "b"}, {"enum": [1, "ab", None]}, {"type": "string", "format": "date"}]),
    st.sampled_from([{"type": "string", "pattern": "^[a-c]+$"}, {"type": "string", "pattern": "b"}]),
    st.builds(
        lambda low, span: {"type": "string", "minLength": low, "maxLength": low + span},
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    st.builds(
        lambda low, span: {"type": "number", "minimum": low, "maximum": low + span},
        st.decimals(-20, 20, places=2).map(float),
        st.integers(0, 9),
    ),
    st.builds(lambda low: {"type": "integer", "exclusiveMinimum": low}, st.integers(-9, 9)),
)


def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas around others."""
    objects = st.builds(
        lambda properties, required, further: {
            "type": "object",
            "properties": properties,
            "required": required,
            **({} if further is None else {"additionalProperties": further}),
        },
        st.dictionaries(NAMES, inner, max_size=4),
        st.lists(NAMES, unique=True, max_size=2),
        st.one_of(st.none(), st.booleans(), inner),
    )
    arrays = st.builds(
        lambda first, items, least, span: {
            "type": "array",
            "prefixItems": first,
            "items": items,
            "minItems": least,
            "maxItems": least + span,
        },
        st.lists(inner, min_size=1, max_size=2),
        inner,
        st.integers(0, 2),
        st.integers(0, 3),
    )
    combined = st.builds(
        lambda keyword, parts: {keyword: parts},
        st.sampled_from(["anyOf", "oneOf", "allOf"]),
        st.lists(inner, min_size=1, max_size=3),
    )
    return st.one_of(objects, arrays, combined)


def test_walks_over_random_schemas_are_valid(vocabulary):
    counts = {"texts": 0, "schemas": 0, "refused": 0}
    schemas = st.recursive(LEAVES, larger, max_leaves=8)

    @quick(250)
    @given(schemas, schemas)
    def valid(schema, definition):
        root = {**schema, "$defs": {"x": definition}} if isinstance(schema, dict) else schema
        try:
            grammar = Grammar.from_json_schema(root)
        except ColibriError as fault:
            if fault.code not in ("schema_unsupported", "grammar_dead_end"):
                raise
            counts["refused"] += 1
            return
        counts["schemas"] += 1
        validator = jsonschema_rs.validator_for(root, validate_formats=True)
        for text in walks(grammar, vocabulary, 4, json.dumps(root)):
            assert validator.is_valid(json.loads(text)), text
            counts["texts"] += 1

    valid()
    assert counts["schemas"] > 100
    assert counts["texts"] > 300
