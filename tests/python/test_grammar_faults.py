"""What is wrong with a grammar, a schema or tools, as Python sees it: every fault with its parts."""

from __future__ import annotations

import copy
import pickle
import signal
import time
from functools import partial
from typing import Any

import colibri
import pytest
from colibri import Grammar, GrammarError

PARTS = {"code", "message", "why", "fix", "line", "column", "text", "pointer"}


def faults(make: Any, *arguments: Any, **options: Any) -> GrammarError:
    with pytest.raises(GrammarError) as caught:
        make(*arguments, **options)
    assert all(set(one) == PARTS for one in caught.value.faults)
    return caught.value


def test_every_fault_of_a_grammar_is_listed() -> None:
    text = 'root ::= x | y | gone\nx ::= "a" x\ny ::= [a-\n'
    error = faults(Grammar.from_gbnf, text)
    places = [(one["line"], one["column"], one["code"]) for one in error.faults]
    assert places == [(1, 18, "grammar_syntax"), (2, 1, "grammar_dead_end"), (3, 7, "grammar_syntax")]
    for one in error.faults:
        assert one["text"] == text.splitlines()[one["line"] - 1]
        assert one["message"] in error.message
        assert one["pointer"] is None
    assert error.faults[1]["fix"] == "give the rule an alternative that can end"
    assert error.faults[2]["message"] == "the class is not closed"
    assert (error.why, error.fix) == (None, None)


def test_one_fault_has_the_parts_of_the_error() -> None:
    error = faults(Grammar.from_gbnf, "root ::= [a-")
    (one,) = error.faults
    assert (one["line"], one["column"]) == (1, 10)
    assert (one["code"], one["why"], one["fix"]) == (error.code, error.why, error.fix)


def test_the_faults_of_a_schema_have_pointers_and_say_what_python_takes() -> None:
    schema = {"properties": {"a": {"not": {}}, "b": {"type": "string", "pattern": r"\bx"}}}
    error = faults(Grammar.from_json_schema, schema)
    assert [one["pointer"] for one in error.faults] == ["#/properties/a/not", "#/properties/b/pattern"]
    for one in error.faults:
        assert one["code"] == "schema_unsupported"
        assert "lenient=True" in one["fix"]
        assert "--schema-lenient" not in str(error) + one["fix"]
    assert Grammar.from_json_schema(schema, lenient=True).accepts('{"b":"x"}')
    (one,) = faults(Grammar.from_json_schema, {"pattern": "(?P<x>a)"}).faults
    assert one["fix"] == "write (?<name>...)"


def test_tools_are_named_with_the_option_that_ignores_what_cannot_be_enforced(model: colibri.Model) -> None:
    parameters = {"type": "object", "properties": {"n": {"type": "string", "not": {}}}, "minProperties": 1}
    tools = [{"name": "f", "parameters": parameters}]
    error = faults(model.generate, "Hello", tools=tools)
    places = [one["pointer"] for one in error.faults]
    assert places == ["f: #/minProperties", "f: #/properties/n/not"]
    for one in error.faults:
        assert "tools_lenient=True" in one["fix"]
        assert f"{one['pointer']}: {one['message']}" in str(error)
    assert model.generate("Hello", tools=tools, tools_lenient=True, temperature=0, max_tokens=2).token_ids


def test_errors_that_are_copied_keep_their_faults() -> None:
    error = faults(Grammar.from_gbnf, "root ::= a b")
    assert len(error.faults) == 2
    assert copy.copy(error).faults == error.faults
    assert pickle.loads(pickle.dumps(error)).faults == error.faults


def test_an_error_that_no_grammar_made_is_its_own_fault() -> None:
    error = GrammarError("grammar_syntax", "no JSON", "why", "use --raw")
    (one,) = error.faults
    assert (one["message"], one["why"], one["fix"], one["line"]) == ("no JSON", "why", "use raw=True", None)


SLOW = 'root ::= root root | "a"'
"""A grammar whose readings of a text are as many as there are trees over it."""


@pytest.mark.parametrize("work", ["accepts", "forced", "mask"])
def test_a_signal_ends_a_long_walk(model: colibri.Model, work: str) -> None:
    class Rung(Exception):
        pass

    def handler(*_: object) -> None:
        raise Rung

    grammar = Grammar.from_gbnf(SLOW)
    ask = {"accepts": grammar.accepts, "forced": grammar.forced, "mask": partial(grammar.mask, model)}[work]
    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        begun = time.monotonic()
        with pytest.raises(Rung):
            ask(b"a" * 1000)
        assert time.monotonic() - begun < 5
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
