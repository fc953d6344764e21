"""Calls that the embedded model makes: right ones, cut ones, odd ones, and what the program says of them."""

from __future__ import annotations

import importlib.util
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import colibri
import pytest
from colibri import Grammar, ToolSet

ROOT = Path(__file__).resolve().parents[2]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 120}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather for a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"type": "string"}},
            "required": ["city"],
        },
    },
}
ASK = "What is the weather in Rome?"


def call(name: str, *arguments: tuple[str, str]) -> str:
    pairs = "".join(f"\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>" for key, value in arguments)
    return f"<tool_call>{name}{pairs}</tool_call>"


def function_of(one: dict[str, Any]) -> tuple[str, Any]:
    return one["function"]["name"], json.loads(one["function"]["arguments"])


def fits(tools: ToolSet, one: dict[str, Any]) -> bool:
    """Whether a call is one of the tools' and its arguments, as JSON, fit the schema."""
    name, arguments = function_of(one)
    (schema,) = [entry["parameters"] for entry in tools.functions(tools.names) if entry["name"] == name]
    return Grammar.from_json_schema(schema).accepts(json.dumps(arguments, separators=(",", ":")))


# Prompts of the corpus generator.


@pytest.fixture(scope="module")
def demo() -> Iterator[colibri.Model]:
    with colibri.load("demo", ram="1GB", ctx=2048) as model:
        yield model


@pytest.fixture(scope="module")
def prompts() -> list[tuple[str, ToolSet, str, Any]]:
    """20 requests with the tools that are offered, and name and arguments of the right call."""
    path = ROOT / "tools" / "demo_model" / "corpus"
    spec = importlib.util.spec_from_file_location(
        "demo_corpus", path / "__init__.py", submodule_search_locations=[str(path)]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["demo_corpus"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["demo_corpus"])
    corpus: ModuleType = importlib.import_module("demo_corpus.tools")
    made = []
    for number in range(20):
        rng = corpus.Random(f"tool-calls-{number + 4}")
        calls = corpus.draw_calls(rng, 1 + number % 3)
        wanted = calls[0]
        rng.shuffle(calls)
        tools = ToolSet([{"type": "function", "function": json.loads(corpus.schema(one))} for one in calls])
        made.append((wanted.request, tools, wanted.name, wanted.arguments))
    return made


def test_calls_for_prompts_of_the_corpus(
    demo: colibri.Model, prompts: list[tuple[str, ToolSet, str, Any]]
) -> None:
    """Bound calls all parse and fit, no fewer are right, and drafts of a free model change nothing."""
    right, proposed, accepted, saved, free_right = 0, 0, 0, 0, 0
    for request, tools, name, arguments in prompts:
        messages = [{"role": "user", "content": request}]
        text = demo.template.render(messages, tools=tools.definitions)
        free = demo.generate(text, raw=True, **GREEDY)
        found, _ = tools.parse(demo.tokenizer.decode(free.token_ids))
        free_right += [function_of(one) for one in found] == [(name, arguments)]
        bound = demo.generate(messages=messages, tools=tools, **GREEDY)
        assert bound.finish_reason == "tool_calls"
        assert all(fits(tools, one) for one in bound.tool_calls), bound
        assert bound.stats.drafts["grammar"].accepted == bound.stats.drafts["grammar"].proposed
        right += [function_of(one) for one in bound.tool_calls] == [(name, arguments)]
        drafted = demo.generate(messages=messages, tools=tools, grammar_mode="draft", **GREEDY)
        assert (drafted.token_ids, drafted.stop_token) == (free.token_ids, free.stop_token), request
        stats = drafted.stats
        proposed += stats.drafts["grammar"].proposed
        accepted += stats.drafts["grammar"].accepted
        saved += stats.forwards_saved
        assert stats.forwards + stats.forwards_saved == len(drafted.token_ids)
    assert right >= free_right
    assert right >= 19, right
    assert accepted >= 0.95 * proposed
    assert saved == accepted > 10 * len(prompts)


# Calls that are cut and continued.


@pytest.mark.parametrize("think", [False, True])
def test_a_cut_call_becomes_whole(model: colibri.Model, think: bool) -> None:
    given: dict[str, Any] = {"tools": [WEATHER], "temperature": 0, "think": think}
    whole = model.generate(ASK, max_tokens=80, **given)
    (wanted,) = [function_of(one) for one in whole.tool_calls]
    for cut_at in range(1, len(whole.token_ids)):
        with model.session() as session:
            cut = session.chat(ASK, max_tokens=cut_at, **given)
            assert (cut.finish_reason, cut.tool_calls) == ("length", ())
            stream = session.resume(max_tokens=80, **given)
            chunks = list(stream)
            rest = stream.result
            assert cut.token_ids + rest.token_ids == whole.token_ids
            assert (rest.finish_reason, rest.complete, rest.text) == ("tool_calls", True, "")
            assert [function_of(one) for one in rest.tool_calls] == [wanted]
            assert {chunk.kind for chunk in chunks if chunk.text} == {"tool_call"}
            answer = session.messages[-1]
            assert answer["content"] == ""
            assert answer["tool_calls"] == list(rest.tool_calls)
            with pytest.raises(colibri.InvalidValue, match="nothing to continue"):
                session.resume(**given)


def test_a_call_cut_twice_is_shown_once(model: colibri.Model) -> None:
    given: dict[str, Any] = {"tools": [WEATHER], "temperature": 0}
    with model.session() as session:
        session.chat(ASK, max_tokens=2, **given)
        stream = session.resume(max_tokens=3, **given)
        chunks = list(stream)
        again = stream.result
        assert (again.finish_reason, again.complete, again.tool_calls) == ("length", False, ())
        assert "".join(chunk.text for chunk in chunks if chunk.kind == "text") == again.text
        assert session.messages[-1]["content"] == model.tokenizer.decode(session._answer.token_ids)  # type: ignore[union-attr]
        last = session.resume(max_tokens=80, **given).finish()
        assert function_of(last.tool_calls[0]) == ("get_weather", {"city": "Rome"})
        assert session.messages[-1]["content"] == ""


def test_a_continued_answer_keeps_its_first_call(model: colibri.Model) -> None:
    """Two calls, cut inside the second: the first stays what it was, its id included."""
    two = call("get_weather", ("city", "Rome")) + call("get_weather", ("city", "Oslo"))
    given: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "required", "temperature": 0}
    ids = model.tokenizer.encode(two)
    with model.session() as session:
        script = Script(ids)
        cut = session.chat(ASK, max_tokens=len(ids) - 4, logits_processors=[script], **given)
        (first,) = cut.tool_calls
        assert cut.text.startswith("<tool_call>get_weather")
        rest = session.resume(max_tokens=4, logits_processors=[script], **given).finish()
        assert [function_of(one) for one in rest.tool_calls] == [("get_weather", {"city": "Oslo"})]
        assert session.messages[-1]["tool_calls"] == [first, *rest.tool_calls]
        assert session.messages[-1]["content"] == ""


def test_a_character_that_is_cut_in_a_call_becomes_whole(model: colibri.Model) -> None:
    wanted = "Zürich 日本"
    ids = model.tokenizer.encode(call("get_weather", ("city", wanted)))
    given: dict[str, Any] = {"tools": [WEATHER], "temperature": 0}
    broken = 0
    for cut_at in range(1, len(ids)):
        with model.session() as session:
            script = Script(ids)
            cut = session.chat(ASK, max_tokens=cut_at, logits_processors=[script], **given)
            broken += "\ufffd" in cut.text
            rest = session.resume(max_tokens=len(ids) - cut_at, logits_processors=[script], **given).finish()
            assert [function_of(one) for one in rest.tool_calls] == [("get_weather", {"city": wanted})]
    assert broken


def test_a_character_that_is_cut_in_a_text_becomes_whole(model: colibri.Model) -> None:
    ids = model.tokenizer.encode("ü日")
    assert len(ids) > 2
    for cut_at in range(1, len(ids)):
        with model.session() as session:
            script = Script(ids)
            session.chat("Hello", temperature=0, max_tokens=cut_at, logits_processors=[script])
            left = len(ids) - cut_at
            session.resume(temperature=0, max_tokens=left, logits_processors=[script]).finish()
            assert session.messages[-1]["content"] == "ü日"


@pytest.mark.parametrize("follows", ["_call>now</tool_call>", "box is full."])
def test_a_mark_that_is_cut_is_decided_later(model: colibri.Model, follows: str) -> None:
    """The mark of a call in the bytes of several tokens, cut among them; it was shown, and is not again."""
    encode = model.tokenizer.encode
    ids = [*encode("Well, <tool"), *encode(follows)]
    given: dict[str, Any] = {"tools": [{"name": "now"}], "temperature": 0}
    for cut_at in range(1, len(ids)):
        with model.session() as session:
            script = Script(ids)
            cut = session.chat("Hello", max_tokens=cut_at, logits_processors=[script], **given)
            stream = session.resume(max_tokens=len(ids) - cut_at, logits_processors=[script], **given)
            shown = "".join(chunk.text for chunk in stream if chunk.kind == "text")
            answer = session.messages[-1]
            if follows.startswith("box"):
                assert cut.text + shown == answer["content"] == "Well, <tool" + follows
            else:
                assert shown == stream.result.text == "Well, "[len(cut.text) :]
                assert answer["content"] == "Well, "
                assert [function_of(one) for one in answer["tool_calls"]] == [("now", {})]


class Script:
    """A processor after which only the tokens of a text can be chosen, in their order."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids
        self.start: int | None = None

    def __call__(self, tokens: Any, logits: Any) -> None:
        if self.start is None:
            self.start = len(tokens)
        wanted = self.ids[len(tokens) - self.start]
        logits[:] = -1e30
        logits[wanted] = 0


# What a call may be.

ODD = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "on": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
        "choice": {"enum": ["1", 2, None, "true"]},
        "mixed": {"type": ["string", "integer"], "minimum": 5},
    },
    "required": ["text"],
}


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ((("text", '<arg_key>a</arg_key> </tool_call><tool_call>x </arg_valu> é 日😀\n"q" \\'),), None),
        ((("text", ""), ("count", "-3"), ("on", "true")), {"text": "", "count": -3, "on": True}),
        ((("text", ""), ("tags", '["a","é😀"]')), {"text": "", "tags": ["a", "é😀"]}),
        ((("text", ""), ("tags", '["</arg_value>","<"]')), {"text": "", "tags": ["</arg_value>", "<"]}),
        ((("text", ""), ("place", '{"lat":1.5}')), {"text": "", "place": {"lat": 1.5}}),
        ((("text", ""), ("choice", "1")), {"text": "", "choice": "1"}),
        ((("text", ""), ("choice", "2")), {"text": "", "choice": 2}),
        ((("text", ""), ("choice", "null")), {"text": "", "choice": None}),
        ((("text", ""), ("choice", "true")), {"text": "", "choice": "true"}),
        ((("text", ""), ("mixed", "7")), {"text": "", "mixed": 7}),
        ((("text", ""), ("mixed", "3")), {"text": "", "mixed": "3"}),
        ((("text", ""), ("mixed", "7.5")), {"text": "", "mixed": "7.5"}),
    ],
)
def test_odd_arguments_are_accepted_and_read_back(given: Any, read: Any) -> None:
    tools = ToolSet([{"name": "f", "parameters": ODD}])
    text = call("f", *given)
    assert Grammar.from_tools(tools, choice="required").accepts(text)
    calls, left = tools.parse(text + call("f", ("text", "next")))
    assert [function_of(one) for one in calls] == [("f", read or dict(given)), ("f", {"text": "next"})]
    assert left == ""
    assert fits(tools, calls[0])


def read_back(properties: dict[str, Any], *given: tuple[str, str]) -> Any:
    """The arguments read from a call that the grammar accepts; they fit the schema."""
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    tools = ToolSet([{"name": "f", "parameters": parameters}])
    text = call("f", *given)
    assert Grammar.from_tools(tools, choice="required").accepts(text)
    (one,), left = tools.parse(text)
    assert left == ""
    assert fits(tools, one)
    return function_of(one)[1]


STRING_REFERENCES = [
    ({"a": {"$ref": "#/properties/b%20c"}, "b c": {"type": "string"}}, "b c"),
    ({"a": {"$ref": "#foo"}, "b": {"$anchor": "foo", "type": "string"}}, "b"),
    ({"a": {"$ref": "#/properties/b/anyOf/0"}, "b": {"anyOf": [{"type": "string"}]}}, "b"),
    ({"a": {"$ref": "#/properties/b", "type": "string"}, "b": {"type": ["string", "integer"]}}, "b"),
]


@pytest.mark.parametrize(("properties", "other"), STRING_REFERENCES)
def test_references_mean_the_same_in_a_call_and_in_its_grammar(properties: Any, other: str) -> None:
    assert read_back(properties, ("a", "5"), (other, "x")) == {"a": "5", other: "x"}


OBJECT = {"type": "object", "properties": {"k": {"type": "integer"}}, "required": ["k"]}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "array", "minItems": 2}]}, "[1]", "[1]"),
        ({"anyOf": [{"type": "string"}, {"type": "array", "minItems": 2}]}, "[1,2]", [1, 2]),
        ({"anyOf": [{"type": "string"}, OBJECT]}, '{"k":"x"}', '{"k":"x"}'),
        ({"anyOf": [{"type": "string"}, OBJECT]}, '{"k":1}', {"k": 1}),
        ({"anyOf": [{"type": "string"}, OBJECT]}, '{"k": 1 2}', '{"k": 1 2}'),
        ({"type": ["string", "number"]}, "1e400", "1e400"),
        ({"type": ["string", "number"]}, "1e4", 1e4),
        ({}, "NaN", "NaN"),
    ],
)
def test_a_text_is_a_string_unless_its_schema_takes_it_as_json(schema: Any, text: str, value: Any) -> None:
    assert read_back({"a": schema}, ("a", text)) == {"a": value}


STRING_OR_MORE = [
    {"type": ["string", "object"], "additionalProperties": {"type": "string"}},
    {"type": ["string", "array"], "items": {"type": "string", "maxLength": 40}},
    {"type": ["string", "array"], "items": {"type": "string", "pattern": "^</arg_value>$"}},
    {"type": ["string", "array"], "items": {"enum": ["</arg_value>", "x"]}},
    {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"</arg_value>": {"type": "string"}}}]},
    {},
]


@pytest.mark.parametrize("schema", STRING_OR_MORE)
def test_the_first_mark_ends_what_may_be_a_string(schema: Any) -> None:
    """JSON in its place holds the mark in an escaped form only, which is the same value."""
    tools = [{"name": "f", "parameters": {"type": "object", "properties": {"a": schema}, "required": ["a"]}}]
    grammar = Grammar.from_tools(tools, choice="required", parallel=False)
    mark = "</arg_value>"
    for value in ({mark: "x"}, {"k": f"{mark}</tool_call>"}, [mark], ["x", "<b>"]):
        written = json.dumps(value, separators=(",", ":"))
        plain = call("f", ("a", written))
        # All of it is one value, or none.
        assert not grammar.accepts(plain) or mark not in written
        escaped = written.replace("<", "\\u003c")
        if Grammar.from_json_schema(schema).accepts(written):
            assert read_back({"a": schema}, ("a", escaped)) == {"a": value}


def test_strings_that_may_be_bare_hold_the_beginning_of_a_mark() -> None:
    schema = {"type": ["string", "array"], "items": {"type": "string"}}
    for value in (["<b>é</b>"], ["</arg_value", "</arg_</arg_v\n>"], ["</arg_value", ">"]):
        written = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        assert read_back({"a": schema}, ("a", written)) == {"a": value}


def test_the_names_of_arguments_are_exact() -> None:
    string = {"type": "string"}
    assert read_back({" a ": string}, (" a ", "x")) == {" a ": "x"}
    assert read_back({"a": string, " a": string}, ("a", "x"), (" a", "y")) == {"a": "x", " a": "y"}
    (one,), _ = ToolSet([{"name": "f", "parameters": {"properties": {"a": string}}}]).parse(
        call("f", (" a ", "5"))
    )
    assert function_of(one) == ("f", {"a": "5"})


@pytest.mark.parametrize("text", ["9" * 4301, "-" + "9" * 5000])
@pytest.mark.parametrize("schema", [{"type": "integer"}, {"type": ["string", "integer"]}])
def test_long_integers_stay_numbers(schema: Any, text: str) -> None:
    assert arguments_text(schema, text) == f'{{"a": {text}}}'


@pytest.mark.parametrize("schema", [{"type": "array"}, {"type": ["string", "array"]}, {}])
def test_deep_json_stays_json(schema: Any) -> None:
    text = "[" * 1200 + "]" * 1200
    assert arguments_text(schema, text) == f'{{"a": {text}}}'


def arguments_text(schema: Any, text: str) -> str:
    """The arguments read from a call with one argument that the grammar accepts, as they are written."""
    tools = ToolSet([{"name": "f", "parameters": {"type": "object", "properties": {"a": schema}}}])
    assert Grammar.from_tools(tools, choice="required").accepts(call("f", ("a", text)))
    (one,), left = tools.parse(call("f", ("a", text)))
    assert left == ""
    return str(one["function"]["arguments"])


def test_a_call_that_is_cut_inside_a_string_is_none() -> None:
    """The mark that closes the argument lies in a text of its JSON."""
    tools = ToolSet([{"name": "f", "parameters": {"properties": {"a": {"type": "array"}}}}])
    cut = call("f", ("a", '["')) + " and"
    assert tools.parse(cut) == ([], cut)


@pytest.mark.parametrize(
    "schema", [{"$ref": "#/nowhere"}, {"$ref": "https://example.org/x"}, {"type": "text"}]
)
def test_what_no_schema_explains_is_json_where_it_is_json(schema: Any) -> None:
    tools = ToolSet([{"name": "f", "parameters": {"properties": {"a": schema}}}])
    for text, value in (('{"b": [1]}', {"b": [1]}), ("5", 5), ("five", "five")):
        (one,), _ = tools.parse(call("f", ("a", text), ("other", text)))
        assert function_of(one) == ("f", {"a": value, "other": value})


def test_numbers_that_no_machine_holds_stay_json() -> None:
    tools = ToolSet([{"name": "f", "parameters": {"properties": {"x": {"type": "number"}}}}])
    (one,), _ = tools.parse(call("f", ("x", "1e999")))
    assert one["function"]["arguments"] == '{"x": 1e999}'
    (one,), _ = tools.parse(call("f", ("x", "NaN")))
    assert one["function"]["arguments"] == '{"x": "NaN"}'


def test_a_name_may_begin_another(model: colibri.Model) -> None:
    tools = ToolSet([{"name": "get"}, {"name": "get_all"}, {"name": "get_all_2"}])
    grammar = Grammar.from_tools(tools, choice="required")
    for name in tools.names:
        assert grammar.accepts(call(name))
        assert function_of(tools.parse(call(name))[0][0]) == (name, {})
        result = model.generate("Hello", tools=tools, tool_choice=name, parallel_tool_calls=False, **GREEDY)
        assert [function_of(one) for one in result.tool_calls] == [(name, {})]
    for wrong in ("ge", "get_", "get_al", "get_all_"):
        assert not grammar.accepts(call(wrong))
        assert tools.parse(call(wrong))[0] == []


def test_parallel_calls(model: colibri.Model) -> None:
    """The same script makes two calls where several may be made, and one where only one may."""
    ids = model.tokenizer.encode(call("now") + call("now"))
    for parallel, count in ((True, 2), (False, 1)):
        result = model.generate(
            "Hello",
            tools=[{"name": "now"}],
            tool_choice="required",
            parallel_tool_calls=parallel,
            temperature=0,
            max_tokens=len(ids),
            logits_processors=[Script(ids)],
        )
        assert len(result.tool_calls) == count
        assert len({one["id"] for one in result.tool_calls}) == count
        assert result.complete is True


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_drawn_calls_fit(model: colibri.Model, seed: int) -> None:
    """At a temperature at which the model babbles, whatever comes to its end is calls that fit."""
    tools = ToolSet(
        [
            {
                "name": "f",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "code": {"type": "string", "pattern": "^[a-z]{1,9}$"},
                        "count": {"type": "integer", "minimum": -9, "maximum": 99},
                        "tags": {"type": "array", "items": {"enum": ["x", "</arg_value>"]}, "maxItems": 3},
                        "either": {"type": ["boolean", "null"]},
                    },
                    "required": ["code", "count", "tags"],
                },
            }
        ]
    )
    for draft in ("off", "grammar"):
        result = model.generate(
            "Hello",
            tools=tools,
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=3.0,
            top_p=1.0,
            seed=seed,
            max_tokens=150,
            draft=draft,
        )
        assert result.finish_reason == "tool_calls"
        assert result.text == ""
        (one,) = result.tool_calls
        assert fits(tools, one)


def test_a_conversation_with_results(model: colibri.Model) -> None:
    """Call, result, reply, and the next call, all through the template; with results of several calls."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": ASK}]
    for city in ("Rome", "Oslo"):
        made = model.generate(messages=messages, tools=[WEATHER], **GREEDY)
        assert [function_of(one)[1]["city"] for one in made.tool_calls] == [city]
        (one,) = made.tool_calls
        messages.append({"role": "assistant", "content": None, "tool_calls": [one]})
        content = json.dumps({"temperature": 12, "sky": "sunny"})
        messages.append({"role": "tool", "tool_call_id": one["id"], "content": content})
        reply = model.generate(messages=messages, tools=[WEATHER], **GREEDY)
        assert reply.tool_calls == ()
        assert reply.finish_reason == "stop"
        assert city in reply.text
        assert "12" in reply.text
        messages.append({"role": "assistant", "content": reply.text})
        messages.append({"role": "user", "content": "What is the weather in Oslo?"})


def test_ap_28_what_is_wrong_is_said_before_a_stream_begins(model: colibri.Model) -> None:
    """AP-28: by the call itself, not by the first chunk."""
    unsupported = [{"name": "f", "parameters": {"properties": {"x": {"not": {}}}}}]
    messages = [{"role": "user", "content": "Hello"}]
    with pytest.raises(colibri.GrammarError, match="schema_unsupported"):
        model.create_chat_completion(messages, stream=True, tools=unsupported)
    with pytest.raises(colibri.GrammarError, match="grammar_syntax"):
        model.stream("Hello", grammar=Grammar.from_gbnf("root ::= <no such token>"))
    with pytest.raises(colibri.ContextError):
        model.create_chat_completion([{"role": "user", "content": "Hello " * 4000}], stream=True)


# The program.


@pytest.fixture
def files(cli: Any) -> tuple[str, ...]:
    (cli.home / "tools.json").write_text(json.dumps([WEATHER]))
    return ("--tools", "tools.json", "--temp", "0")


def test_a_cut_call_exits_with_10(cli: Any, files: tuple[str, ...]) -> None:
    done = cli("generate", ASK, *files, "-n", "5")
    assert (done.code, done.out[:11]) == (10, "<tool_call>")
    assert "incomplete" in done.err
    value = json.loads(cli("generate", ASK, *files, "-n", "5", "--json").out)
    assert (value["finish_reason"], value["limit"], value["complete"]) == ("length", "max_tokens", False)
    assert value["tool_calls"] == []


# A text of 8000 characters, which does not fit the context.
ENDLESS = ("--grammar", "root ::= [a-zA-Z ,.]{8000}", "--temp", "1.5", "--seed", "3", "-n", "2000")


def test_a_timeout_is_said_before_the_cut(cli: Any) -> None:
    """Whoever set a limit of time learns that it was reached; that the answer is cut stands beside it."""
    done = cli("generate", "Tell me a story.", *ENDLESS, "--timeout", "0.3s", "--json")
    assert done.code == 124, done.err
    value = json.loads(done.out)
    assert (value["finish_reason"], value["complete"]) == ("timeout", False)


def test_an_interrupted_structure_exits_with_130(cli: Any) -> None:
    process = cli.start("generate", "Tell me a story.", *ENDLESS, "--json", "--progress", "json")
    while b'"decode"' not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    done = cli.end(process)
    assert done.code == 130, done.err
    value = json.loads(done.out)
    assert (value["finish_reason"], value["complete"]) == ("cancelled", False)


def test_a_chat_continues_a_cut_call(cli: Any, files: tuple[str, ...]) -> None:
    done = cli("chat", *files, "-n", "7", text=f"{ASK}\n/continue\n")
    assert done.code == 0, done.err
    assert json.loads(done.out.splitlines()[-1]) == {"name": "get_weather", "arguments": {"city": "Rome"}}


def test_every_count_is_shown(cli: Any, files: tuple[str, ...]) -> None:
    done = cli("generate", ASK, *files, "--json")
    timings, usage = (json.loads(done.out)[part] for part in ("timings", "usage"))
    assert timings["forwards"] + timings["forwards_saved"] == usage["completion_tokens"]
    assert 0 < timings["forwards_saved"] == timings["draft"]["grammar"][1] <= timings["draft"]["grammar"][0]
    assert timings["forced_tokens"] > 0
    assert timings["draft_off"] == {}
    line = cli("generate", ASK, *files).err
    drafted = timings["draft"]["grammar"]
    assert f"drafts {drafted[1]}/{drafted[0]} (grammar)" in line
    assert f"in {timings['forwards']} forward" in line
    assert f"{timings['forced_tokens']} forced by the grammar" in line
    shown = cli("chat", *files, "--no-stats", text=f"{ASK}\n/show stats\n").err
    assert f"drafts {drafted[1]}/{drafted[0]} (grammar)" in shown
