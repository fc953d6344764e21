"""Tools: descriptions, the grammar of calls, calls read back, and the way through the chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import colibri
import pytest
from colibri import Grammar, ToolSet
from colibri.template import ChatTemplate
from colibri.tools import Framing, framing_of

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather for a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer"},
            },
            "required": ["city"],
        },
    },
}
NOW = {"name": "now", "parameters": {"type": "object", "properties": {}}}
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 80}
ASK = "What is the weather in Rome?"


def call(name: str, framing: str = "\n", **arguments: str) -> str:
    pairs = "".join(
        f"{framing}<arg_key>{key}</arg_key>{framing}<arg_value>{value}</arg_value>"
        for key, value in arguments.items()
    )
    return f"<tool_call>{name}{pairs}</tool_call>"


# The grammar of calls.


def test_calls_follow_their_schemas() -> None:
    grammar = Grammar.from_tools([WEATHER, NOW], choice="required")
    for framing in ("\n", ""):
        assert grammar.accepts(call("get_weather", framing, city="Rome", days="3"))
        assert grammar.accepts(call("get_weather", framing, city='O"B <b>', unit="celsius"))
    assert grammar.accepts(call("now"))
    assert grammar.accepts(call("now") + "\n" + call("now"))
    for wrong in (
        call("get_weather"),
        call("get_weather", city="Rome", days='"3"'),
        call("get_weather", city="Rome", unit="kelvin"),
        call("get_weather", days="3", city="Rome"),
        call("get_time"),
        "hello",
        "",
    ):
        assert not grammar.accepts(wrong), wrong


def test_choices() -> None:
    free = Grammar.from_tools([WEATHER, NOW])
    for text in ("", "Hello.", "Let me see." + call("now"), "<tool_cal"):
        assert free.accepts(text)
    assert not free.accepts(call("now") + "Done.")
    named = Grammar.from_tools([WEATHER, NOW], choice={"type": "function", "function": {"name": "now"}})
    assert named.forced() == b"<tool_call>now"
    single = Grammar.from_tools([NOW], choice="now", parallel=False)
    assert single.accepts(call("now"))
    assert not single.accepts(call("now") * 2)


@pytest.mark.parametrize(
    "choice",
    [[], ["now"], {}, {"type": "function"}, {"function": 5}, {"function": {"name": "auto"}}, 5, True],
)
def test_choices_of_another_kind_are_refused(choice: Any) -> None:
    with pytest.raises(colibri.InvalidValue, match="tool_choice"):
        Grammar.from_tools([WEATHER, NOW], choice=choice)


def test_a_known_framing_is_forced() -> None:
    grammar = Grammar.from_tools([WEATHER], choice="required", framing=Framing("\n", "\n", "", ""))
    assert grammar.forced() == b"<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>"


def test_what_cannot_be_enforced_names_the_tool() -> None:
    tool = {"name": "a", "parameters": {"type": "object", "properties": {"x": {"not": {}}}}}
    with pytest.raises(colibri.GrammarError, match="a: #/properties/x"):
        Grammar.from_tools([tool])


@pytest.mark.parametrize(
    "tools",
    [
        "x",
        {},
        [],
        [5],
        [{}],
        [{"name": ""}],
        [{"name": "a b"}],
        [{"type": "retrieval", "name": "a"}],
        [{"name": "a"}, {"name": "a"}],
        [{"name": "a", "parameters": []}],
        [{"name": "a", "parameters": {"type": "string"}}],
        [{"type": "function", "function": 5}],
        [{"name": "a", "description": "\ud800"}],
        [{"name": "\ud800"}],
        [{"name": "a", "parameters": {"properties": {"a": {"const": "\ud800"}}}}],
        [{"name": "a", "parameters": {"properties": {"\ud800": {}}}}],
        [{"name": "a", "parameters": {"properties": {"a": {"maximum": float("inf")}}}}],
        [{"name": "a", "parameters": {"properties": {"a": {"maximum": float("nan")}}}}],
    ],
)
def test_malformed_descriptions_are_refused(tools: Any) -> None:
    with pytest.raises(colibri.InvalidValue, match="tools"):
        ToolSet(tools)


@pytest.mark.parametrize(
    "tool",
    [
        {"name": "a", "parameter": {"type": "object"}},
        {"name": "a", "input_schema": {"type": "object"}},
        {"name": "a", "inputSchema": {"type": "object"}},
        {"name": "a", "args": {"x": {"type": "string"}}},
        {"name": "a", "properties": {"x": {"type": "string"}}},
        {"type": "function", "function": {"name": "a", "inputSchema": {}}},
        {"type": "function", "function": {"name": "a"}, "input_schema": {}},
        {"type": "function", "function": {"name": "a"}, "parameters": {}},
    ],
)
def test_arguments_under_another_name_are_not_lost(tool: Any) -> None:
    with pytest.raises(colibri.InvalidValue, match=r"tools\[0\]") as caught:
        ToolSet([tool])
    assert "write it" in str(caught.value.fix)


def test_unknown_fields_of_a_description_are_noted() -> None:
    tool = {"type": "function", "icon": "x", "function": {**WEATHER["function"], "inputSchema": {}}}
    tools = ToolSet([tool, {**NOW, "strict": True, "description": "d"}])
    assert [note.split(":")[0] for note in tools.notes] == ["get_weather"] * 2
    assert ["'icon'" in tools.notes[0], "'inputSchema'" in tools.notes[1]] == [True, True]
    assert Grammar.from_tools(tools).notes[:2] == tools.notes
    assert ToolSet([WEATHER]).notes == ()


def test_lenient_tools_name_what_is_ignored() -> None:
    parameters = {"type": "object", "minProperties": 1, "properties": {"x": {"type": "string", "not": {}}}}
    grammar = Grammar.from_tools([{"name": "a", "parameters": parameters}], lenient=True)
    assert len(grammar.ignored) == 2
    assert set(grammar.ignored) <= set(grammar.notes)


def test_no_call_has_no_grammar() -> None:
    with pytest.raises(colibri.InvalidValue, match="no call is allowed") as caught:
        Grammar.from_tools([WEATHER], choice="none")
    assert "none" not in str(caught.value.fix)
    assert Grammar.from_tools([{"name": "none"}], choice="none").forced() == b"<tool_call>none"


# Reading calls.


def test_calls_are_read_with_and_without_line_breaks() -> None:
    tools = ToolSet([WEATHER, NOW])
    for framing in ("\n", "", " \n "):
        calls, rest = tools.parse(call("get_weather", framing, city="Rome", days="3") + framing + call("now"))
        assert [one["function"]["name"] for one in calls] == ["get_weather", "now"]
        assert json.loads(calls[0]["function"]["arguments"]) == {"city": "Rome", "days": 3}
        assert calls[1]["function"]["arguments"] == "{}"
        assert calls[0]["type"] == "function"
        assert calls[0]["id"] != calls[1]["id"]
        assert rest == ""


def test_what_is_no_call_is_left() -> None:
    tools = ToolSet([NOW])
    for text in (call("then"), "<tool_call>now", "<tool_call>now<arg_key>a</arg_key></tool_call>"):
        assert tools.parse(text) == ([], text)
    calls, rest = tools.parse(call("now") + " and text")
    assert (len(calls), rest) == (1, " and text")


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "42", "42"),
        ({"type": "string"}, ' "x" ', ' "x" '),
        ({"type": "integer"}, "42", 42),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "42", "42"),
        ({"type": "array"}, '["a"]', ["a"]),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": ["1", 2]}, "2", 2),
        ({"anyOf": [{"type": "string"}, {"type": "boolean"}]}, "true", True),
        ({"$ref": "#/$defs/t"}, "7", "7"),
        ({}, '{"a": 1}', {"a": 1}),
        ({"type": "integer"}, "many", "many"),
    ],
)
def test_values_have_the_types_of_their_schemas(schema: Any, text: str, value: Any) -> None:
    parameters = {"type": "object", "properties": {"x": schema}, "$defs": {"t": {"type": "string"}}}
    (one,), _ = ToolSet([{"name": "a", "parameters": parameters}]).parse(call("a", x=text))
    assert json.loads(one["function"]["arguments"]) == {"x": value}


def test_a_value_of_endless_references_is_what_it_is() -> None:
    parameters = {"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}}
    (one,), _ = ToolSet([{"name": "a", "parameters": parameters}]).parse(call("a", x="7"))
    assert json.loads(one["function"]["arguments"]) == {"x": 7}


def test_what_is_no_text_is_not_read() -> None:
    for text in (5, "\ud800"):
        with pytest.raises(colibri.InvalidValue, match="text"):
            ToolSet([NOW]).parse(text)  # type: ignore[arg-type]


def test_what_the_grammar_accepts_is_read_back() -> None:
    """Walks the grammar of calls at random; every whole text is calls and nothing else."""
    import random

    tools = ToolSet([WEATHER, NOW])
    grammar = Grammar.from_tools(tools, choice="required")
    chooser = random.Random(5)
    whole = 0
    for _ in range(60):
        text = b""
        while len(text) < 400:
            allowed = grammar.allowed(text)
            if not allowed or (grammar.accepts(text) and chooser.random() < 0.5):
                break
            # Closing marks end free text sooner than chance would.
            text += b"<" if b"<" in allowed and chooser.random() < 0.5 else bytes([chooser.choice(allowed)])
        if not grammar.accepts(text):
            continue
        whole += 1
        calls, rest = tools.parse(text.decode("utf-8"))
        assert calls
        assert rest == ""
        for one in calls:
            arguments = json.loads(one["function"]["arguments"])
            assert one["function"]["name"] == "now" or isinstance(arguments["city"], str)
    assert whole > 5


# Through the model.


def test_the_framing_is_that_of_the_template(model: colibri.Model) -> None:
    assert model._folder.call_framing == Framing("\n", "\n", "", "")
    assert framing_of("<tool_call>f<arg_key>k</arg_key>", "f", "k", "v") is None


@pytest.mark.parametrize("draft", ["off", "auto"])
def test_a_call_comes_back_as_json(model: colibri.Model, draft: str) -> None:
    result = model.generate(ASK, tools=[WEATHER], draft=draft, **GREEDY)
    assert result.finish_reason == "tool_calls"
    assert result.text == ""
    assert result.complete is True
    (one,) = result.tool_calls
    assert one["function"]["name"] == "get_weather"
    assert json.loads(one["function"]["arguments"])["city"] == "Rome"


def test_chunks_of_a_call_have_their_kind(model: colibri.Model) -> None:
    chunks = list(model.stream(ASK, tools=[WEATHER], **GREEDY))
    raw = "".join(chunk.text for chunk in chunks if chunk.kind == "tool_call")
    assert raw.startswith("<tool_call>get_weather")
    assert "".join(chunk.text for chunk in chunks if chunk.kind == "text") == ""


def test_free_text_stays_free(model: colibri.Model) -> None:
    free = model.generate(
        messages=[{"role": "user", "content": "Hello"}], tools=[WEATHER], tool_choice="auto", **GREEDY
    )
    assert free.finish_reason == "stop"
    assert free.tool_calls == ()
    assert free.text


def test_a_required_call_is_made(model: colibri.Model) -> None:
    result = model.generate("Hello", tools=[WEATHER, NOW], tool_choice="now", **GREEDY)
    assert result.tool_calls[0]["function"]["name"] == "now"
    none = model.generate("Hello", tools=[WEATHER], tool_choice="none", **GREEDY)
    assert none.text == model.generate("Hello", **GREEDY).text


def test_a_call_that_is_cut_is_text_and_incomplete(model: colibri.Model) -> None:
    stream = model.stream(ASK, tools=[WEATHER], temperature=0, max_tokens=6)
    chunks = list(stream)
    result = stream.result
    assert (result.finish_reason, result.complete, result.tool_calls) == ("length", False, ())
    assert result.text.startswith("<tool_call>")
    assert result.text == "".join(chunk.text for chunk in chunks if chunk.kind == "text")


def test_messages_make_the_round_trip(model: colibri.Model) -> None:
    first = model.generate(ASK, tools=[WEATHER], **GREEDY)
    answer = {"role": "assistant", "content": first.text, "tool_calls": list(first.tool_calls)}
    messages = [
        {"role": "user", "content": ASK},
        answer,
        {"role": "tool", "content": '{"temperature": 21, "condition": "sunny"}'},
    ]
    rendered = model.template.render(messages, tools=[WEATHER])
    raw = model.tokenizer.decode(first.token_ids)
    assert raw in rendered
    second = model.generate(messages=messages, tools=[WEATHER], **GREEDY)
    assert second.finish_reason == "stop"
    assert "21" in second.text


def test_a_conversation_keeps_calls(model: colibri.Model) -> None:
    with model.session() as session:
        session.chat(ASK, tools=[WEATHER], **GREEDY)
        assert session.messages[-1]["tool_calls"][0]["function"]["name"] == "get_weather"


def test_the_openai_shape_has_tool_calls(model: colibri.Model) -> None:
    messages = [{"role": "user", "content": ASK}]
    whole = model.create_chat_completion(messages, tools=[WEATHER], **GREEDY)
    choice = whole["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (one,) = choice["message"]["tool_calls"]
    pieces = list(model.create_chat_completion(messages, stream=True, tools=[WEATHER], **GREEDY))
    deltas = [piece["choices"][0]["delta"] for piece in pieces]
    ((streamed,),) = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
    assert streamed["function"] == one["function"]
    assert streamed["index"] == 0
    assert pieces[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_template_without_tools_is_refused(model: colibri.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model._folder
    plain = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", "plain")
    monkeypatch.setitem(folder.__dict__, "template", plain)
    monkeypatch.delitem(folder.__dict__, "call_framing", raising=False)
    try:
        with pytest.raises(colibri.InvalidValue, match="knows no tools"):
            model.generate(ASK, tools=[WEATHER])
    finally:
        folder.__dict__.pop("call_framing", None)


def test_the_model_is_free_in_draft_mode(model: colibri.Model, tmp_path: Path) -> None:
    free = model.generate(ASK, tools=[WEATHER], grammar_mode="draft", draft="off", **GREEDY)
    drafted = model.generate(ASK, tools=[WEATHER], grammar_mode="draft", draft="grammar", **GREEDY)
    assert drafted.token_ids == free.token_ids
    assert free.complete is None
    draft = drafted.stats.drafts["grammar"]
    assert draft.proposed > 0
    assert draft.accepted >= 0.95 * draft.proposed
    assert drafted.stats.forwards_saved > 0


# The program.


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ('{"maximum": 1e400}', "the number 1e400"),
        ('{"maximum": NaN}', "NaN is no JSON"),
        ('{"maximum": -Infinity}', "-Infinity is no JSON"),
        ('{"const": "\\ud800"}', "lone surrogates"),
    ],
)
def test_what_no_tools_file_may_hold_is_named_as_it_is_written(cli: Any, schema: str, said: str) -> None:
    text = f'[{{"name": "f", "parameters": {{"properties": {{"a": {schema}}}}}}}]'
    (cli.home / "tools.json").write_text(text)
    for arguments in (("grammar", "from-tools", "tools.json"), ("generate", ASK, "--tools", "tools.json")):
        done = cli(*arguments)
        assert done.code == 7, done.err
        assert said in done.err
        assert "tools.json" in done.err


def test_faults_of_tools_come_one_by_one(cli: Any) -> None:
    digits = "1234567890" * 3
    faulty = '{"properties": {"a": {"not": {}}, "b": {"$ref": "#/x"}}}'
    (cli.home / "two.json").write_text(f'[{{"name": "f", "parameters": {faulty}}}]')
    done = cli("grammar", "from-tools", "two.json")
    assert (done.code, done.out) == (7, "")
    assert done.err.count("error[") == 2
    assert "two.json: f: #/properties/b/$ref: " in done.err
    assert "--schema-lenient" in done.err
    as_json = cli("grammar", "from-tools", "two.json", "--json")
    faults = json.loads(as_json.out)["faults"]
    assert as_json.code == 7
    assert [fault["pointer"] for fault in faults] == ["f: #/properties/a/not", "f: #/properties/b/$ref"]
    (cli.home / "long.json").write_text(
        f'[\n{{"name": "f", "parameters": {{"properties": {{"a": {{"maximum": {digits}}}}}}}}}]'
    )
    for arguments in (("grammar", "from-tools", "long.json"), ("generate", ASK, "--tools", "long.json")):
        done = cli(*arguments)
        assert done.code == 7
        assert f"long.json: the number {digits}" in done.err
        assert "1:" not in done.err
