"""Grammars on the command line: the verb, the options, their errors, and exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest

ASK = "Extract name, age and city as JSON: Omar is 42 years old and lives in Lisbon."
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
        "required": ["name", "age", "city"],
    }
)
WEATHER = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather for a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
# A folder that is no model: what is wrong with a grammar must be said before it is looked at.
NO_MODEL = ("-m", "./nowhere")


@pytest.fixture
def tools(cli: Any) -> str:
    (cli.home / "tools.json").write_text(json.dumps(WEATHER))
    return "tools.json"


# Generating.


@pytest.mark.parametrize("name", ["--json-schema", "--schema"])
def test_a_schema_binds_the_answer(cli: Any, name: str) -> None:
    done = cli("generate", ASK, name, SCHEMA, "--json-whitespace", "flexible", "--temp", "0")
    assert done.code == 0, done.err
    assert json.loads(done.out) == {"name": "Omar", "age": 42, "city": "Lisbon"}
    assert "forced by the grammar" in done.err


def test_a_grammar_is_a_file_a_text_or_standard_input(cli: Any) -> None:
    (cli.home / "ok.gbnf").write_text('root ::= "ok"')
    for given, text in (
        (("--grammar", "ok.gbnf"), None),
        (("--grammar-file", "ok.gbnf"), None),
        (("--grammar", 'root ::= "ok"'), None),
        (("--grammar", "-"), 'root ::= "ok"'),
    ):
        done = cli("generate", "hi", *given, text=text)
        assert (done.code, done.out) == (0, "ok"), done.err


def test_a_cut_answer_exits_with_10(cli: Any) -> None:
    done = cli("generate", ASK, "--schema", SCHEMA, "--temp", "0", "-n", "3")
    assert done.code == 10
    assert "incomplete" in done.err
    value = json.loads(cli("generate", ASK, "--schema", SCHEMA, "--temp", "0", "-n", "3", "--json").out)
    assert value["complete"] is False
    assert value["finish_reason"] == "length"
    assert cli("generate", "hi", "--grammar", 'root ::= "a"+', "-n", "3").code == 0


def test_figures_of_drafts(cli: Any) -> None:
    def timings(*options: str) -> dict[str, Any]:
        done = cli(
            "generate",
            ASK,
            "--schema",
            SCHEMA,
            "--json-whitespace",
            "flexible",
            "--temp",
            "0",
            "--json",
            *options,
        )
        assert done.code == 0, done.err
        value = json.loads(done.out)
        assert json.loads(value["text"])["name"] == "Omar"
        return value["timings"]

    on, off = timings("--draft", "grammar", "--draft-max", "8"), timings("--draft", "off")
    assert off["draft"] == {"grammar": [0, 0]}
    assert off["forwards_saved"] == 0
    assert on["draft"]["grammar"][0] >= on["draft"]["grammar"][1] > 0
    assert on["forwards"] + on["forwards_saved"] == off["forwards"]
    assert on["forced_tokens"] == off["forced_tokens"] > 0


def test_draft_mode_leaves_the_answer_alone(cli: Any) -> None:
    free = cli("generate", "Tell me a story.", "--seed", "3", "-n", "40")
    bound = cli(
        "generate",
        "Tell me a story.",
        "--seed",
        "3",
        "-n",
        "40",
        "--grammar-mode",
        "draft",
        "--schema",
        SCHEMA,
    )
    assert (bound.code, bound.out) == (0, free.out)


def test_calls_are_lines_of_json(cli: Any, tools: str) -> None:
    done = cli("generate", "What is the weather in Rome?", "--tools", tools, "--temp", "0")
    assert done.code == 0, done.err
    assert json.loads(done.out) == {"name": "get_weather", "arguments": {"city": "Rome"}}
    value = json.loads(
        cli("generate", "What is the weather in Rome?", "--tools", tools, "--temp", "0", "--json").out
    )
    assert value["finish_reason"] == "tool_calls"
    assert value["tool_calls"][0]["function"]["name"] == "get_weather"
    forced = cli("generate", "hi", "--tools", tools, "--tool-choice", "required", "--temp", "0", "-n", "60")
    assert all(json.loads(line)["name"] == "get_weather" for line in forced.out.splitlines())
    assert forced.out


# Errors, all before the model is looked at.


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--grammar", "missing.gbnf"), "missing.gbnf"),
        (("--grammar", "."), "Is a directory"),
        (("--grammar", "empty"), "empty"),
        (("--grammar", "binary"), "not UTF-8"),
        (("--grammar-file", 'root ::= "a"'), "looks like the text of a grammar"),
        (("--schema", "missing.json"), "missing.json"),
        (("--tools", "missing.json"), "missing.json"),
        (("--grammar", 'root ::= "a"', "--schema", "{}"), "--grammar and --json-schema"),
        (("--tool-choice", "required"), "without --tools"),
        (("--draft", "mtp"), "auto, off, grammar"),
        (("--draft-max", "64"), "63"),
        (("--grammar-mode", "loose"), "constrain, draft"),
        (("--json-whitespace", "some"), "compact, flexible"),
    ],
)
def test_ux_09_the_wrong_kind_of_value_is_named(cli: Any, given: tuple[str, ...], said: str) -> None:
    """UX-09."""
    (cli.home / "empty").write_text("\n")
    (cli.home / "binary").write_bytes(b"\xff\xfe\x00\x01")
    done = cli("generate", "hi", *NO_MODEL, *given)
    assert done.slug() == "invalid_value"
    assert done.code == 2
    assert said in done.err


@pytest.mark.parametrize(
    ("given", "slug", "said"),
    [
        (("--grammar", 'root ::= "a'), "grammar_syntax", "1:"),
        (("--grammar", 'root ::= "a" root'), "grammar_dead_end", "root"),
        (("--grammar-file", "bad.gbnf"), "grammar_syntax", "bad.gbnf:2:7"),
        (("--schema", '{"type": "string", "not": {}}'), "schema_unsupported", "not"),
        (("--schema", "{"), "grammar_syntax", "JSON"),
        (("--tools", "bad.gbnf"), "grammar_syntax", "not JSON"),
        (("--tools", "bad.json"), "grammar_syntax", "parameters"),
    ],
)
def test_a_faulty_grammar_exits_with_7(cli: Any, given: tuple[str, ...], slug: str, said: str) -> None:
    (cli.home / "bad.gbnf").write_text('root ::= x\nx ::= ] "a"\ny ::= missing\n')
    (cli.home / "bad.json").write_text('[{"name": "a", "parameters": 5}]')
    done = cli("generate", "hi", *NO_MODEL, *given)
    assert done.slug() == slug
    assert done.code == 7
    assert said in done.err


def test_the_line_of_a_fault_is_shown_with_a_caret(cli: Any) -> None:
    (cli.home / "bad.gbnf").write_text('root ::= x\nx ::= ] "a"\ny ::= missing\n')
    err = cli("generate", "hi", *NO_MODEL, "--grammar", "bad.gbnf").err
    lines = err.splitlines()
    shown = next(index for index, line in enumerate(lines) if line.endswith('2 | x ::= ] "a"'))
    assert lines[shown + 1].index("^") == lines[shown].index("]")
    assert "colibri grammar check bad.gbnf" in err


def test_a_lenient_schema_says_what_it_ignores(cli: Any) -> None:
    schema = (
        '{"type": "object", "properties": {"a": {"type": "integer", "not": {"const": 1}}}, "required": ["a"]}'
    )
    done = cli("generate", "hi", "--schema", schema, "--schema-lenient", "--temp", "0")
    assert done.code in (0, 10)
    assert "#/properties/a" in done.err


def test_standard_input_is_read_once(cli: Any) -> None:
    done = cli("generate", "hi", "-f", "-", "--grammar", "-", *NO_MODEL, text='root ::= "a"')
    assert done.code in (2, 3)
    assert cli("chat", "--grammar", "-", text="hi\n").slug() == "invalid_value"


# The verb.


def test_check_lists_every_fault(cli: Any) -> None:
    (cli.home / "bad.gbnf").write_text('root ::= x\nx ::= ] "a"\ny ::= missing\n')
    done = cli("grammar", "check", "bad.gbnf")
    assert done.code == 7
    assert "bad.gbnf:2:7" in done.out
    assert "missing" in done.out
    assert "^" in done.out
    assert done.out.splitlines()[-1] == f"bad.gbnf: {done.out.count('error[')} faults"
    value = json.loads(cli("grammar", "check", "bad.gbnf", "--json").out)
    assert len(value["faults"]) == done.out.count("error[") >= 2
    assert {"code", "message", "line", "column", "text"} <= value["faults"][0].keys()
    good = cli("grammar", "check", "-", text='root ::= "a"')
    assert (good.code, good.out) == (0, "standard input: no fault\n")


def test_test_says_where_a_text_stops(cli: Any) -> None:
    grammar = 'root ::= "{" [0-9]+ "}"'
    done = cli("grammar", "test", grammar, "{12}", "{1x}", "{1")
    assert done.code == 7
    lines = done.out.splitlines()
    assert lines[0] == "accepted  {12}"
    assert lines[1] == "refused   {1x}"
    assert "byte 3" in lines[2]
    assert "0-9 }" in lines[2]
    assert "ends too early" in lines[4]
    piped = cli("grammar", "test", grammar, text="{12}\n{3}\n")
    assert (piped.code, piped.out.count("accepted")) == (0, 2)
    value = json.loads(cli("grammar", "test", grammar, "{1x}", "--json").out)
    assert value["results"][0]["matched"] == 2
    assert cli("grammar", "test", grammar).slug() == "invalid_value"


def test_from_schema_writes_the_grammar(cli: Any) -> None:
    (cli.home / "s.json").write_text(SCHEMA)
    for given in ("s.json", SCHEMA):
        done = cli("grammar", "from-schema", given)
        assert done.code == 0, done.err
        assert 'every text begins with  {"name":"' in done.err
        (cli.home / "s.gbnf").write_text(done.out)
        assert cli("grammar", "check", "s.gbnf").code == 0
        assert cli("grammar", "test", "s.gbnf", '{"name":"Ada","age":36,"city":"Rome"}').code == 0
        assert cli("grammar", "test", "s.gbnf", '{"name":"Ada","age":"36","city":"Rome"}').code == 7
    value = json.loads(cli("grammar", "from-schema", SCHEMA, "--json").out)
    assert value["forced"] == '{"name":"'
    assert value["gbnf"] == done.out
    two = '{"type": "object", "properties": {"a": {"not": {}}, "b": {"type": "string", "not": {}}}}'
    refused = cli("grammar", "from-schema", two)
    assert (refused.code, refused.out) == (7, "")
    assert refused.err.count("error[schema_unsupported]: #/properties/") == 2
    assert "--schema-lenient" in refused.err
    lenient = cli("grammar", "from-schema", '{"type": "string", "not": {}}', "--schema-lenient")
    assert lenient.code == 0
    assert "note: " in lenient.err


def test_from_tools_writes_the_grammar_of_calls(cli: Any, tools: str) -> None:
    done = cli("grammar", "from-tools", tools)
    assert done.code == 0, done.err
    assert "1 function can be called: get_weather" in done.err
    assert done.out.startswith('root ::= "<tool_call>')
    (cli.home / "t.gbnf").write_text(done.out)
    assert cli("grammar", "check", "t.gbnf").code == 0


def test_the_verb_alone_is_its_help(cli: Any) -> None:
    assert "from-schema" in cli("grammar").out


# In a chat.


def test_a_chat_is_bound_and_freed(cli: Any) -> None:
    (cli.home / "ok.gbnf").write_text('root ::= "ok"')
    text = "/grammar ok.gbnf\nhi\n/grammar off\nWhat is 6 * 7?\n/grammar none.gbnf\n"
    done = cli("chat", "--temp", "0", "-n", "30", text=text)
    assert done.code == 0, done.err
    assert done.out == "ok\n6 * 7 = 42\n"
    assert "none.gbnf" in done.err
    schema = cli("chat", "--schema", '{"const": "hello"}', text="hi\n/set schema off\n")
    assert schema.out == '"hello"\n'
