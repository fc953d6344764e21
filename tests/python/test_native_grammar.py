"""The native grammar classes: errors with their places, masks, steps over tokens, sampling under a mask."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from colibri import _native
from colibri.engine import grammar_faults

BYTES = [bytes([value]) for value in range(256)]
STOP = 256
TURN = 257
VOCABULARY = [*BYTES, b"<|end|>", b"<|turn|>", b"true", b'{"a":']
SPECIAL = {"<|end|>": STOP, "<|turn|>": TURN}


def vocabulary() -> _native.Vocabulary:
    return _native.Vocabulary(VOCABULARY, SPECIAL)


def state_of(text: str) -> _native.GrammarState:
    return _native.GrammarState(_native.Grammar.from_gbnf(text), vocabulary(), [STOP])


def tokens(mask: np.ndarray) -> list[int]:
    return [int(token) for token in np.flatnonzero(mask)]


def test_bytes_are_taken_as_text_or_not_at_all():
    state = state_of('root ::= ("<|turn|>" "é" | <|turn|>) "!"')
    assert not state.accept_text(b"<|turn|>x")
    assert state.length == 0
    assert tokens(state.mask()) == [ord("<"), TURN]
    assert state.accept_text(b"<|turn|>\xc3")
    assert tokens(state.mask()) == [0xA9]
    assert state.accept_text(b"\xa9!")
    assert state.can_end
    state.rewind(0)
    assert state.accept(TURN)
    assert state.accept_text(b"!")
    assert state.accept(STOP)
    assert not state.accept_text(b"x")


def test_a_grammar_answers_questions_about_prefixes():
    grammar = _native.Grammar.from_gbnf('root ::= "yes" | "no" "!"*')
    assert grammar.accepts(b"yes")
    assert grammar.accepts(b"no!!")
    assert not grammar.accepts(b"ye")
    assert grammar.matched(b"year") == 2
    assert grammar.allowed(b"") == b"ny"
    assert grammar.forced(b"y") == b"es"
    assert grammar.forced(b"y", limit=1) == b"e"
    assert grammar.forced(b"no") == b""
    long = _native.Grammar.from_gbnf('root ::= "ab"{200} [cd]')
    assert long.forced(b"a", limit=100) == b"ba" * 50
    assert long.forced(b"a") == b"b" + b"ab" * 199
    assert grammar.can_end(b"no")
    assert grammar.allowed(b"x") == grammar.forced(b"x") == b""
    assert _native.Grammar.from_regex("[0-9]{2}").accepts(b"42")
    assert not _native.Grammar.from_regex("[0-9]{2}").accepts(b"421")


def test_every_fault_of_a_grammar_has_its_place_and_the_error_shows_all():
    text = 'root ::= missing "x\n\nother ::= [a-\nthird ::= gone\n'
    faults = grammar_faults("gbnf", text)
    assert len(faults) > 1
    lines = text.split("\n")
    for fault in faults:
        assert fault["code"] in {"grammar_syntax", "grammar_dead_end"}
        assert isinstance(fault["line"], int)
        assert fault["text"] == lines[fault["line"] - 1]
    with pytest.raises(_native.NativeError) as raised:
        _native.Grammar.from_gbnf(text)
    code, message, _why, _fix, carried = raised.value.args
    assert code == faults[0]["code"]
    assert all(report(fault) in message for fault in faults)
    assert carried == faults
    (fault,) = grammar_faults("gbnf", "root ::= [a-")
    with pytest.raises(_native.NativeError) as raised:
        _native.Grammar.from_gbnf("root ::= [a-")
    assert raised.value.args[:4] == (fault["code"], report(fault), fault["why"], fault["fix"])
    assert grammar_faults("gbnf", 'root ::= "a"') == []


def report(fault: dict[str, Any]) -> str:
    """A fault as its error shows it: place and message, the line, and a caret under the column."""
    head = f"{fault['line']}:{fault['column']}: {fault['message']}"
    return f"{head}\n    {fault['text']}\n    {' ' * (fault['column'] - 1)}^"


def test_schemas_are_compiled_noted_and_refused_by_keyword_and_place():
    schema = '{"type":"object","properties":{"a":{"type":"boolean"}},"required":["a"]}'
    grammar = _native.Grammar.from_json_schema(schema)
    assert grammar.accepts(b'{"a":true}')
    assert not grammar.accepts(b'{"a": true}')
    assert _native.Grammar.from_json_schema(schema, whitespace="flexible").accepts(b'{"a": true}')
    assert all(pointer.startswith("#") and text for pointer, text, _ in grammar.notes())
    refused = '{"type":"object","properties":{"a":{"not":{"type":"string"}}}}'
    (fault,) = grammar_faults("json_schema", refused)
    assert (fault["code"], fault["pointer"], fault["line"]) == (
        "schema_unsupported",
        "#/properties/a/not",
        None,
    )
    assert "not" in str(fault["message"])
    assert grammar_faults("json_schema", refused, True) == []
    assert any("not" in text for _, text, _ in _native.Grammar.from_json_schema(refused, True).notes())
    with pytest.raises(_native.NativeError, match="whitespace"):
        _native.Grammar.from_json_schema("{}", whitespace="wide")  # type: ignore[arg-type]


def test_masks_allow_tokens_that_fit_as_a_whole():
    state = state_of('root ::= "{\\"a\\":" ("true" | "2") "}"')
    assert state.mask().shape == (len(VOCABULARY),)
    assert state.mask().dtype == np.bool_
    assert tokens(state.mask()) == [ord("{"), 259]
    assert state.forced(100) == b'{"a":'
    assert state.accept(259)
    assert tokens(state.mask()) == [ord("2"), ord("t"), 258]
    assert state.mask_counts() == (3, None)
    assert state.allowed_bytes() == b"2t"
    assert not state.accept(ord("f"))
    assert state.length == 1
    assert state.accept(258)
    assert state.mask_counts() == (1, ord("}"))
    assert state.accept(ord("}"))
    assert state.can_end
    assert tokens(state.mask()) == [STOP]
    assert state.allows(STOP)
    assert not state.finished
    assert state.accept(STOP)
    assert state.finished
    assert not state.mask().any()
    state.rewind(1)
    assert (state.length, state.finished, state.allowed_bytes()) == (1, False, b"2t")
    with pytest.raises(OverflowError):
        state.accept(-1)


def test_special_tokens_are_no_text_and_unknown_names_are_refused():
    state = state_of('root ::= "<|turn|>" | <|turn|>')
    assert tokens(state.mask()) == [ord("<"), TURN]
    with pytest.raises(_native.NativeError, match="<nothing>"):
        state_of("root ::= <nothing>")
    with pytest.raises(_native.NativeError, match="ends the text"):
        state_of('root ::= "a" <|end|>')


def test_threads_share_a_state_safely():
    state = state_of('root ::= "a"*')
    threads = [
        threading.Thread(target=lambda: [state.accept(ord("a")) for _ in range(200)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert state.length == 800
    assert state.can_end


def test_tools_are_compiled_to_calls_with_the_framing_that_is_known():
    parameters = '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}'
    tools = f'[{{"name":"get","parameters":{parameters}}}]'
    grammar = _native.Grammar.from_tools(tools)
    call = b"<tool_call>get<arg_key>n</arg_key><arg_value>7</arg_value></tool_call>"
    assert grammar.accepts(call)
    assert grammar.accepts(call.replace(b"<arg_value>", b"\n<arg_value>"))
    assert not grammar.accepts(b"text " + call)
    assert grammar.accepts(call + call)
    assert not _native.Grammar.from_tools(tools, parallel=False).accepts(call + call)
    assert _native.Grammar.from_tools(tools, free=True).accepts(b"text " + call)
    framed = _native.Grammar.from_tools(tools, framing=("", "\n", "", ""))
    assert framed.forced(b"") == b"<tool_call>get<arg_key>n</arg_key>\n<arg_value>"
    refused = '[{"name":"get","parameters":{"type":"object","properties":{"n":{"not":{}}}}}]'
    with pytest.raises(_native.NativeError) as raised:
        _native.Grammar.from_tools(refused)
    assert raised.value.args[0] == "schema_unsupported"
    assert "get: #/properties/n/not" in raised.value.args[1]
