"""Schemas with very many values: they compile within the limits, whichever way the values are listed."""

from __future__ import annotations

import json
import random

import pytest
from colibri import Grammar
from colibri.errors import ColibriError

COUNT = 100_000
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="module")
def words() -> list[str]:
    """So many different words of 4 to 12 letters."""
    dice = random.Random(7)
    found: set[str] = set()
    while len(found) < COUNT:
        found.add("".join(dice.choices(LETTERS, k=dice.randint(4, 12))))
    return sorted(found)


@pytest.mark.parametrize("way", ["enum", "oneOf", "anyOf"])
def test_a_hundred_thousand_values(words, way):
    constants = [{"const": word, "title": "t"} for word in words]
    schema = {
        "enum": {"type": "string", "enum": words},
        "oneOf": {"oneOf": [{"const": word} for word in words]},
        "anyOf": {"anyOf": [{"type": "null"}, {"enum": words[:50_000]}, *constants[50_000:]]},
    }[way]
    grammar = Grammar.from_json_schema(
        {"type": "object", "properties": {"word": schema}, "required": ["word"]}
    )
    assert all(grammar.accepts(json.dumps({"word": word}, separators=(",", ":"))) for word in words[::1009])
    known = set(words)
    for other in ("", "zzzz", "aaaa", words[0][:-1], words[-1] + "a"):
        assert grammar.accepts(f'{{"word":"{other}"}}') == (other in known)
    assert grammar.accepts('{"word":null}') == (way == "anyOf")
    # What is left of a word that no other begins like is forced.
    beginning = '{"word":"' + words[0][: common(words[0], words[1]) + 1]
    assert (beginning.encode() + grammar.forced(beginning)).startswith(f'{{"word":"{words[0]}"'.encode())


def common(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    return next(at for at in range(len(one)) if one[at] != other[at])


def test_a_limit_that_is_hit_is_named():
    dice = random.Random(3)
    values = [f"{dice.getrandbits(160):040x}" for _ in range(90_000)]
    with pytest.raises(ColibriError, match="instructions") as raised:
        Grammar.from_json_schema({"enum": values})
    assert raised.value.code == "grammar_too_complex"
