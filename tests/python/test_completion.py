"""The OpenAI shape: formats of the answer, and names that other libraries use for them."""

from __future__ import annotations

import json
from typing import Any

import colibri
import pytest
from colibri import Grammar

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
    "required": ["name", "age", "city"],
}
ASK = [
    {
        "role": "user",
        "content": "Extract name, age and city as JSON: Omar is 42 years old and lives in Lisbon.",
    }
]
OMAR = {"name": "Omar", "age": 42, "city": "Lisbon"}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
# `not` cannot be enforced.
UNSUPPORTED = {**PERSON, "not": {"required": ["street"]}}


class Person:
    """What a class of pydantic looks like from here."""

    @staticmethod
    def model_json_schema() -> dict[str, Any]:
        return PERSON


def answer(model: colibri.Model, **options: Any) -> dict[str, Any]:
    reply = model.create_chat_completion(ASK, temperature=0, **options)
    choice: dict[str, Any] = reply["choices"][0]
    return choice


def schema_format(schema: object, **more: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, **more}}


@pytest.mark.parametrize(
    "given",
    [
        schema_format(PERSON),
        schema_format(PERSON, strict=True),
        schema_format(UNSUPPORTED, strict=False),
        {"type": "json_object", "schema": PERSON},
        Person,
    ],
    ids=["schema", "strict", "not strict", "schema beside the type", "class"],
)
def test_a_schema_binds_the_answer(model: colibri.Model, given: Any) -> None:
    choice = answer(model, response_format=given)
    assert json.loads(choice["message"]["content"]) == OMAR
    assert choice["finish_reason"] == "stop"
    chunks = list(model.create_chat_completion(ASK, stream=True, response_format=given, temperature=0))
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(deltas) == choice["message"]["content"]


def test_a_schema_binds_a_model_that_would_say_something_else(model: colibri.Model) -> None:
    listed = schema_format({"enum": ["blue", "green"]})
    assert answer(model, response_format=listed)["message"]["content"] in ('"blue"', '"green"')
    compact = answer(model, response_format=schema_format(PERSON), json_whitespace="compact")
    assert ": " not in compact["message"]["content"].split('"name"')[1][:2]


def test_any_object(model: colibri.Model) -> None:
    free = answer(model, response_format={"type": "text"})
    assert free == answer(model) == answer(model, response_format=None)
    hello = [{"role": "user", "content": "Hello"}]
    given: dict[str, Any] = {"temperature": 0, "max_tokens": 8}
    for messages in (ASK, hello):
        reply = model.create_chat_completion(messages, response_format={"type": "json_object"}, **given)
        assert reply["choices"][0]["message"]["content"].startswith("{")


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("json", "response_format must be a mapping"),
        ({"type": "json"}, "one of 'text', 'json_object', 'json_schema'"),
        ({}, "one of 'text', 'json_object', 'json_schema'"),
        ({"type": "json_schema"}, '"json_schema": {"name"'),
        ({"type": "json_schema", "json_schema": PERSON}, '"json_schema": {"name"'),
        ({"type": "json_schema", "schema": PERSON}, '"json_schema": {"name"'),
        (schema_format(PERSON, strict="yes"), "strict"),
    ],
)
def test_a_format_that_is_not_known_is_refused(model: colibri.Model, given: Any, hint: str) -> None:
    with pytest.raises(colibri.InvalidValue) as caught:
        answer(model, response_format=given)
    assert "response_format" in caught.value.message
    assert hint in str(caught.value)


def test_what_cannot_be_enforced_is_refused(model: colibri.Model) -> None:
    for strict in ({}, {"strict": True}, {"strict": None}):
        with pytest.raises(colibri.GrammarError, match="`not`"):
            answer(model, response_format=schema_format(UNSUPPORTED, **strict))


def test_a_format_excludes_a_grammar_and_calls(model: colibri.Model) -> None:
    given = schema_format(PERSON)
    with pytest.raises(colibri.InvalidValue, match="response_format and grammar"):
        answer(model, response_format=given, grammar=Grammar.from_gbnf('root ::= "a"'))
    with pytest.raises(colibri.InvalidValue, match="response_format and tools"):
        answer(model, response_format=given, tools=[WEATHER])
    choice = answer(model, response_format=given, tools=[WEATHER], tool_choice="none")
    assert json.loads(choice["message"]["content"]) == OMAR


def test_the_newer_name_of_max_tokens(model: colibri.Model) -> None:
    messages = [{"role": "user", "content": "Tell me a story about a fox."}]
    for names in ({"max_completion_tokens": 5}, {"max_completion_tokens": 5, "max_tokens": 5}):
        reply = model.create_chat_completion(messages, **names)
        assert reply["usage"]["completion_tokens"] == 5
        assert reply["choices"][0]["finish_reason"] == "length"
    with pytest.raises(colibri.InvalidValue, match="max_completion_tokens is 0"):
        model.create_chat_completion(messages, max_completion_tokens=0)
    with pytest.raises(colibri.InvalidValue, match="two names"):
        model.create_chat_completion(messages, max_completion_tokens=5, max_tokens=6)
    with pytest.raises(TypeError, match="did you mean 'max_tokens'"):
        model.generate("Hello", max_completion_tokens=5)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "maker"),
    [
        ("response_format", "from_json_schema"),
        ("json_schema", "from_json_schema"),
        ("guided_json", "from_json_schema"),
        ("guided_regex", "from_regex"),
        ("guided_grammar", "from_gbnf"),
        ("grammar_file", "from_file"),
    ],
)
def test_names_of_other_libraries_lead_to_the_constructor(
    model: colibri.Model, name: str, maker: str
) -> None:
    with pytest.raises(TypeError, match=f"unknown parameter '{name}'; pass grammar=Grammar.{maker}"):
        model.generate("Hello", **{name: {}})  # type: ignore[arg-type]
    assert callable(getattr(Grammar, maker))
    with model.session() as session, pytest.raises(TypeError, match=maker):
        session.chat("Hello", **{name: {}})  # type: ignore[arg-type]
