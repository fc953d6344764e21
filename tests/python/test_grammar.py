"""Grammars without a model: compiling, judging texts and tokens, and every way to be refused."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import colibri
import numpy as np
import pytest
from colibri import Grammar
from colibri.tokenizer import Tokenizer

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


# Judging texts.


def test_texts_are_judged_whole() -> None:
    grammar = Grammar.from_gbnf('root ::= "a"+ "b"')
    assert grammar.accepts("aab")
    assert grammar.accepts(b"ab")
    assert not grammar.accepts("aa")
    assert not grammar.accepts("abb")
    assert grammar.matched("aaxb") == 2
    assert grammar.allowed("a") == b"ab"
    assert grammar.notes == ()


def test_forced_bytes_end_where_there_is_a_choice() -> None:
    grammar = Grammar.from_json_schema(PERSON)
    assert grammar.forced() == b'{"name":"'
    assert grammar.forced('{"name":"Ada"') == b',"age":'
    assert grammar.forced("nothing like it") == b""


def test_gr_39_the_end_is_offered_before_trailing_white_space() -> None:
    """GR-39."""
    grammar = Grammar.from_gbnf('root ::= "{}" ws\nws ::= [ \\n]*')
    assert grammar.forced() == b"{}"
    assert grammar.forced("{}") == b""
    for text in ("{}", "{}\n", "{}\n\n"):
        assert grammar.accepts(text)
    for text in ("{", "{}x"):
        assert not grammar.accepts(text)


def test_js_26_properties_keep_their_order() -> None:
    """JS-26."""
    properties = {name: {"type": "string"} for name in ("thought", "action", "answer")}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    assert Grammar.from_json_schema(schema).forced().startswith(b'{"thought":')
    assert Grammar.from_json_schema(json.dumps(schema)).accepts('{"thought":"","action":"","answer":""}')


def test_a_class_with_a_schema_is_taken() -> None:
    class Person:
        @classmethod
        def model_json_schema(cls) -> dict[str, Any]:
            return PERSON

    for given in (Person, Person()):
        assert Grammar.from_json_schema(given).accepts('{"name":"Ada","age":36}')


def test_white_space_of_json() -> None:
    compact, flexible = (
        Grammar.from_json_schema(PERSON, whitespace=kind) for kind in ("compact", "flexible")
    )
    spaced = '{"name": "Ada", "age": 36}'
    assert flexible.accepts(spaced)
    assert not compact.accepts(spaced)
    assert compact.accepts(spaced.replace(" ", ""))


def test_patterns() -> None:
    grammar = Grammar.from_regex(r"\d{4}-\d{2}")
    assert grammar.accepts("2024-05")
    assert not grammar.accepts("x2024-05")


def test_a_lenient_schema_says_what_it_ignores() -> None:
    schema = {"type": "object", "properties": {"tag": {"type": "string", "not": {"const": "a"}}}}
    with pytest.raises(colibri.GrammarError) as caught:
        Grammar.from_json_schema(schema)
    assert caught.value.code == "schema_unsupported"
    assert caught.value.exit_status == 7
    assert "#/properties/tag" in str(caught.value)
    assert "not" in str(caught.value)
    lenient = Grammar.from_json_schema(schema, lenient=True)
    (note,) = [note for note in lenient.notes if "not" in note]
    assert note.startswith("#/properties/tag")
    assert lenient.ignored == (note,)
    assert [text.split()[1] for text in lenient.usual] == ["objects"]
    assert set(lenient.notes) == {note, *lenient.usual}


@pytest.mark.parametrize(
    "wrapper",
    [
        {"name": "person", "schema": PERSON, "strict": True},
        {"type": "json_schema", "json_schema": {"name": "person", "description": "who", "schema": PERSON}},
        {"type": "json_schema", "name": "person", "schema": PERSON},
        {"json_schema": PERSON},
    ],
)
def test_the_wrapper_of_a_schema_is_taken_off(wrapper: dict[str, Any]) -> None:
    for given in (wrapper, json.dumps(wrapper), json.dumps(wrapper, indent=2)):
        grammar = Grammar.from_json_schema(given)
        assert grammar.forced() == b'{"name":"'
        assert not grammar.accepts('"anything"')


def test_a_schema_of_its_own_is_no_wrapper() -> None:
    for schema in (
        {"type": "object", "schema": PERSON},
        {"properties": {"schema": {"type": "object"}}},
        {"const": 1, "schema": PERSON},
        {"name": "x", "schema": "y"},
    ):
        assert Grammar.from_json_schema(schema).forced() != b'{"name":"'
    with pytest.raises(colibri.GrammarError, match="cannot be kept exactly"):
        Grammar.from_json_schema('{"name": "n", "schema": {"const": 0.12345678901234567890123}}')
    looped: dict[str, Any] = {}
    looped["schema"] = looped
    with pytest.raises(colibri.InvalidValue):
        Grammar.from_json_schema(looped)


def test_a_fault_inside_of_a_wrapper_keeps_its_place() -> None:
    text = '{"name": "n",\n "schema": {"schema": {}, "a": 1,\n  "const": 0.12345678901234567890123}}'
    with pytest.raises(colibri.GrammarError) as caught:
        Grammar.from_json_schema(text)
    assert "3:12" in str(caught.value)


# Judging tokens.


def test_the_mask_agrees_with_the_bytes(model: colibri.Model) -> None:
    grammar = Grammar.from_json_schema(PERSON)
    for prefix in ("", '{"name":"', '{"name":"Ada","age":3'):
        mask = grammar.mask(model, prefix)
        assert mask.dtype == np.bool_
        assert mask.shape == (model.info.vocab_size,)
        expected = []
        for token in range(model.info.vocab_size):
            data, special = model.tokenizer.piece(token)
            fits = (
                bool(data)
                and not special
                and grammar.matched(prefix.encode() + data) == len(prefix + "") + len(data)
            )
            expected.append(fits)
        assert mask.tolist() == expected


def test_end_tokens_are_allowed_where_the_text_can_end(model: colibri.Model) -> None:
    grammar = Grammar.from_gbnf('root ::= "ok"')
    stops = sorted(model.stop_ids)
    assert len(stops) == 3
    assert not grammar.mask(model, "o")[stops].any()
    assert np.flatnonzero(grammar.mask(model, "ok")).tolist() == stops
    assert not grammar.mask(model.tokenizer, "ok").any()


def test_special_tokens_are_never_text(model: colibri.Model) -> None:
    grammar = Grammar.from_gbnf('root ::= "<|user|>" "x"')
    user = model.tokenizer.token_id("<|user|>")
    assert not grammar.mask(model.tokenizer)[user]
    assert grammar.mask(model.tokenizer).any()


def test_a_prefix_that_spells_a_special_token_is_text_where_text_fits(model: colibri.Model) -> None:
    text = Grammar.from_gbnf('root ::= "<|assistant|>" "x"')
    mask = text.mask(model, "<|assistant|>")
    assert [model.tokenizer.piece(int(token)) for token in np.flatnonzero(mask)] == [(b"x", False)]
    assert np.array_equal(mask, text.mask(model, b"<|assistant|>"))
    named = Grammar.from_gbnf('root ::= <|assistant|> "x"')
    assert np.array_equal(mask, named.mask(model, "<|assistant|>"))
    with pytest.raises(colibri.ColibriError, match="beginning of a text"):
        text.mask(model, "<|assistant|>y")
    # Characters in parts, too.
    assert Grammar.from_gbnf('root ::= "é" "x"').mask(model, "é".encode()[:1]).any()


def test_special_tokens_that_may_follow() -> None:
    grammar = Grammar.from_gbnf('root ::= "a" (<think> | !<[7]> | "b")')
    assert grammar.specials() == ()
    assert sorted(grammar.specials("a")) == ["!<[7]>", "<think>"]
    assert grammar.specials("x") == ()


# Refusing.


@pytest.mark.parametrize(
    ("make", "fix"),
    [
        (lambda: Grammar.from_json_schema("person.json"), "Path('person.json').read_text()"),
        (lambda: Grammar.from_json_schema(Path("person.json")), "Path('person.json').read_text()"),
        (lambda: Grammar.from_json_schema('root ::= "a"'), "Grammar.from_gbnf"),
        (lambda: Grammar.from_gbnf('{"type": "object"}'), "Grammar.from_json_schema"),
        (lambda: Grammar.from_gbnf("tool.gbnf"), "Grammar.from_file('tool.gbnf')"),
        (lambda: Grammar.from_file('{"type": "object"}'), "Grammar.from_json_schema"),
        (lambda: Grammar.from_file('root ::= "a"'), "Grammar.from_gbnf"),
    ],
)
def test_what_was_meant_is_named(make: Any, fix: str) -> None:
    with pytest.raises(colibri.ColibriError) as caught:
        make()
    assert fix in str(caught.value.fix)
    faults = getattr(caught.value, "faults", None)
    assert faults is None or fix in faults[0]["fix"]


def test_a_file_with_a_schema_is_no_grammar(tmp_path: Path) -> None:
    (tmp_path / "person.json").write_text(json.dumps(PERSON))
    with pytest.raises(colibri.GrammarError) as caught:
        Grammar.from_file(tmp_path / "person.json")
    assert "Grammar.from_json_schema(Path(" in str(caught.value.fix)


@pytest.mark.parametrize(
    ("given", "maker"),
    [
        ('root ::= "a"', "from_gbnf"),
        ('{"type": "object"}', "from_json_schema"),
        (PERSON, "from_json_schema"),
        (type("Person", (), {"model_json_schema": classmethod(lambda cls: PERSON)}), "from_json_schema"),
        (Path("tool.gbnf"), "from_file"),
        (5, "from_gbnf, from_file"),
    ],
)
def test_a_grammar_that_is_none_names_its_constructor(model: colibri.Model, given: Any, maker: str) -> None:
    with pytest.raises(colibri.InvalidValue) as caught:
        model.generate("hi", grammar=given)
    assert f"Grammar.{maker}" in str(caught.value.fix)


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ('root ::= "a"\nx ::= ] y', 2, "x ::="),
        ("root ::= missing", 1, "missing"),
        ('Root ::= "a"', 1, "root"),
        ('root ::= "\\d"', 1, "\\d"),
    ],
)
def test_faults_of_gbnf_have_their_place(text: str, line: int, expected: str) -> None:
    with pytest.raises(colibri.GrammarError) as caught:
        Grammar.from_gbnf(text)
    assert caught.value.code == "grammar_syntax"
    assert expected in str(caught.value)


def test_a_grammar_that_cannot_end_is_refused() -> None:
    with pytest.raises(colibri.GrammarError, match="grammar_dead_end"):
        Grammar.from_gbnf('root ::= "a" root')


@pytest.mark.parametrize(
    "make",
    [
        lambda: Grammar.from_gbnf(5),
        lambda: Grammar.from_gbnf("root ::= \ud800"),
        lambda: Grammar.from_regex(None),
        lambda: Grammar.from_json_schema(5),
        lambda: Grammar.from_json_schema({"enum": {1, 2}}),
        lambda: Grammar.from_json_schema({}, lenient=1),
        lambda: Grammar.from_json_schema({}, whitespace="none"),
        lambda: Grammar.from_file(5),
        lambda: Grammar.from_gbnf('root ::= "a"').accepts(5),
        lambda: Grammar.from_gbnf('root ::= "a"').mask("demo"),
        lambda: Grammar.from_tools([]),
        lambda: Grammar.from_tools([{"name": "a"}], style="other"),
    ],
)
def test_arguments_of_another_kind_are_invalid_values(make: Any) -> None:
    with pytest.raises(colibri.InvalidValue):
        make()


def test_ux_09_files_that_are_no_grammar(tmp_path: Path) -> None:
    """UX-09."""
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "good").write_text('root ::= "a"')
    for name, why in (("missing", "No such file"), (".", "folder"), ("empty", "empty"), ("binary", "UTF-8")):
        with pytest.raises(colibri.InvalidValue, match=why):
            Grammar.from_file(tmp_path / name)
    assert Grammar.from_file(tmp_path / "good").accepts("a")


def test_a_prefix_that_does_not_fit_has_no_mask(model: colibri.Model) -> None:
    with pytest.raises(colibri.InvalidValue, match="prefix"):
        Grammar.from_gbnf('root ::= "a"').mask(model, "b")


def test_grammars_are_not_pickled() -> None:
    grammar = Grammar.from_gbnf('root ::= "a"')
    for use in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            use(grammar)
    assert repr(grammar) == "Grammar(GBNF)"


def test_a_tokenizer_of_its_own(make_tokenizer: Any) -> None:
    tokenizer = Tokenizer.read(make_tokenizer({"a": 0, "b": 1, "ab": 2}, [("a", "b")], ["<end>"]))
    mask = Grammar.from_gbnf('root ::= "ab" | <end>').mask(tokenizer)
    assert mask.tolist() == [True, False, True, True]
