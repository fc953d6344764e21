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
    assert value["tool_calls"] == []
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
    # Readers of lines want the end of the last one.
    assert done.out.endswith("}\n")
    assert done.out.count("\n") == 1
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
        (("--grammar", '{"type": "object"}'), "looks like a JSON schema: --json-schema"),
        (("--grammar", 'root = "a"'), "`::=`"),
        (("--schema", 'root ::= "a"'), "--grammar takes it"),
        (("--no-parallel-tool-calls",), "--no-parallel-tool-calls is given without --tools"),
        (
            ("--schema", "{}", "--json-schema-file", "s.json"),
            "--json-schema and --json-schema-file are given",
        ),
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


def test_a_fault_of_a_schema_names_file_place_and_fix(cli: Any) -> None:
    (cli.home / "bad.json").write_text('{"type": "object",\n "properties": x}')
    (cli.home / "not.json").write_text('{"properties": {"a": {"not": {}}, "b": {"not": {}}}}')
    (cli.home / "tool.gbnf").write_text('root ::= "a"\n')
    for verb in (("generate", "hi", *NO_MODEL, "--schema"), ("grammar", "from-schema")):
        err = cli(*verb, "bad.json").err
        assert "error[grammar_syntax]: bad.json:2:16: " in err
        lines = err.splitlines()
        shown = next(index for index, line in enumerate(lines) if line.endswith('2 |  "properties": x}'))
        assert lines[shown + 1].index("^") == lines[shown].index("x")
        assert "this looks like a grammar:  --grammar tool.gbnf" in cli(*verb, "tool.gbnf").err
        err = cli(*verb, "not.json").err
        assert "not.json: #/properties/a/not: `not`" in err
        assert "--schema-lenient" in err
    err = cli("generate", "hi", *NO_MODEL, "--schema", "not.json").err
    assert "1 more: `colibri grammar from-schema not.json` shows every problem" in err
    err = cli("generate", "hi", *NO_MODEL, "--schema", '{"not": {}, "properties": {"a": {"not": {}}}}').err
    assert "`colibri grammar from-schema FILE`" in err


def test_a_schema_in_the_place_of_a_grammar_is_recognised(cli: Any) -> None:
    (cli.home / "s.json").write_text(SCHEMA)
    done = cli("generate", "hi", *NO_MODEL, "--grammar", "s.json")
    assert (done.code, done.slug()) == (7, "grammar_syntax")
    assert "this looks like a JSON schema:  --json-schema s.json" in done.err
    assert "colibri grammar from-schema s.json" in cli("grammar", "check", "s.json").out


def test_faults_of_tools_name_the_file_and_the_function(cli: Any) -> None:
    fields = {"a": {"not": {}}, "b": {"type": "string", "not": {}}}
    two = [{"name": "f", "parameters": {"type": "object", "properties": fields}}]
    (cli.home / "two.json").write_text(json.dumps(two))
    (cli.home / "cut.json").write_text('[{"name": "f",\n')
    done = cli("generate", "hi", *NO_MODEL, "--tools", "two.json")
    assert (done.code, done.slug()) == (7, "schema_unsupported")
    lines = done.err.splitlines()
    assert lines[0] == "error[schema_unsupported]: two.json: 2 faults in the schemas"
    assert [line.split()[-6] for line in lines[1:3]] == ["#/properties/a/not:", "#/properties/b/not:"]
    assert "--schema-lenient" in lines[3]
    cut = cli("generate", "hi", *NO_MODEL, "--tools", "cut.json")
    assert "cut.json:1:15: this is not JSON" in cut.err
    assert "^" in cut.err
    foreign = cli("generate", "hi", *NO_MODEL, "--tools", '[{"name": "f", "input_schema": {}}]')
    assert (foreign.code, foreign.slug()) == (7, "grammar_syntax")
    assert "fix:  write it as parameters" in foreign.err


def test_the_line_of_a_fault_is_shown_with_a_caret(cli: Any) -> None:
    (cli.home / "bad.gbnf").write_text('root ::= x\nx ::= ] "a"\ny ::= missing\n')
    err = cli("generate", "hi", *NO_MODEL, "--grammar", "bad.gbnf").err
    lines = err.splitlines()
    shown = next(index for index, line in enumerate(lines) if line.endswith('2 | x ::= ] "a"'))
    assert lines[shown + 1].index("^") == lines[shown].index("]")
    assert "colibri grammar check bad.gbnf" in err


LENIENT = {
    "type": "object",
    "properties": {"a": {"type": "boolean", "not": {"const": 1}, "colour": "red"}},
    "required": ["a"],
}


@pytest.mark.parametrize("how", ["--no-stats", "-q", "--json"])
def test_a_lenient_schema_says_what_it_ignores(cli: Any, how: str) -> None:
    given = ("--schema", json.dumps(LENIENT), "--schema-lenient", "--temp", "0", how)
    done = cli("generate", "hi", *given)
    assert done.code == 0
    ignored = "#/properties/a/not: `not` is ignored: a grammar cannot follow it"
    assert done.err.count(f"warning: --json-schema: {ignored}") == 1
    unknown = "#/properties/a/colour: an unknown keyword, which restricts nothing"
    assert (f"note: --json-schema: {unknown}" in done.err) == (how == "--no-stats")
    if how == "--json":
        assert {ignored, unknown} <= set(json.loads(done.out)["notes"])


def test_lenient_tools_say_what_they_ignore(cli: Any) -> None:
    tools = [{"name": "f", "icon": "x", "parameters": {**LENIENT, "minProperties": 1}}]
    given = (
        "--tools",
        json.dumps(tools),
        "--schema-lenient",
        "-n",
        "1",
        "--json",
        "--tool-choice",
        "required",
    )
    done = cli("generate", "hi", *given)
    assert done.code == 10
    for place in ("/properties/a/not: `not`", "/minProperties: `minProperties`"):
        assert f"{place} is ignored" in done.err
    notes = json.loads(done.out)["notes"]
    assert any("'icon'" in note for note in notes)
    assert sum("is ignored" in note for note in notes) == 2


def test_what_holds_for_most_schemas_is_said_with_v_only(cli: Any) -> None:
    usual = "objects with `properties` have no further ones"
    given = ("generate", "hi", "--schema", '{"properties": {}}', "--temp", "0")
    assert usual not in cli(*given).err
    assert f"note: --json-schema: #: {usual}" in cli(*given, "-v").err
    assert any(usual in note for note in json.loads(cli(*given, "--json").out)["notes"])
    assert f"note: #: {usual}" in cli("grammar", "from-schema", given[3]).err


@pytest.mark.parametrize("wrap", ["{}", '{"type": "json_schema", "json_schema": {}}'])
def test_the_wrapper_of_a_schema_is_taken_off(cli: Any, wrap: str) -> None:
    inner = '{"name": "n", "strict": true, "schema": {"const": "ok"}}'
    (cli.home / "w.json").write_text(wrap.replace("{}", inner))
    done = cli("generate", "hi", "--schema", "w.json", "--temp", "0")
    assert (done.code, done.out) == (0, '"ok"')


def test_aliases_of_llama_cpp(cli: Any) -> None:
    (cli.home / "s.json").write_text('{"const": "ok"}')
    for given in (("-j", '{"const": "ok"}'), ("-jf", "s.json"), ("--json-schema-file", "s.json")):
        assert cli("generate", "hi", *given).out == '"ok"'


def test_draft_mode_proposes_the_white_space_of_models(cli: Any) -> None:
    def proposed(*more: str) -> int:
        given = ("--schema", SCHEMA, "--grammar-mode", "draft", "--draft", "grammar", "--temp", "0", "--json")
        value = json.loads(cli("generate", ASK, *given, *more).out)
        assert json.loads(value["text"])["name"] == "Omar"
        return value["timings"]["draft"]["grammar"][1]

    assert proposed() > proposed("--json-whitespace", "compact")


def test_standard_input_is_read_once(cli: Any, tools: str) -> None:
    for given in (("-f", "-", "--grammar", "-"), ("--tools", "-", "-f", "-"), ("--messages", "-", "-j", "-")):
        done = cli("generate", "hi", *given, *NO_MODEL, text='root ::= "a"')
        assert (done.code, done.slug()) == (2, "invalid_value")
        assert "given twice" in done.err
    for flag in ("--grammar", "--json-schema", "--tools"):
        done = cli("chat", flag, "-", text="hi\n")
        assert (done.code, done.slug()) == (2, "invalid_value")
        assert f"{flag} cannot be - in a chat" in done.err
    for flag, text in (("--json-schema", '{"const": "ok"}'), ("--tools", json.dumps(WEATHER))):
        value = json.loads(
            cli("generate", "hi", flag, "-", "--temp", "0", "-n", "3", "--json", text=text).out
        )
        alone = cli("generate", "hi", flag, text, "--temp", "0", "-n", "3", "--json")
        assert value["usage"] == json.loads(alone.out)["usage"]


def test_several_calls_can_be_forbidden(cli: Any, tools: str) -> None:
    calls = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call>"
    for flags, several in (((), 0), (("--no-parallel-tool-calls",), 7)):
        (cli.home / "t.gbnf").write_text(cli("grammar", "from-tools", tools, *flags).out)
        assert cli("grammar", "test", "t.gbnf", calls).code == 0
        assert cli("grammar", "test", "t.gbnf", calls + calls).code == several
    ask = ("generate", "What is the weather in Rome?", "--tools", tools, "--temp", "0")
    assert json.loads(cli(*ask, "--no-parallel-tool-calls").out)["name"] == "get_weather"


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


def test_test_names_characters_and_special_tokens(cli: Any) -> None:
    for grammar, text, said in (
        ('root ::= "a" <think> "b"', "ab", "byte 2; expected there: the token <think>"),
        ('root ::= "a" !<[7]>', "a", "ends too early; expected there: the token !<[7]>"),
        ("root ::= [à-ü]", "ÿ", "byte 1; expected there: à-ü"),
        ('root ::= [0-9é€-₮] | "日"', "x", "byte 1; expected there: 0-9 é €-₮ 日"),
        ("root ::= [^a]", "a", "any character beyond ASCII"),
        ("root ::= [\\u0800-\\uD7FF]", "a", "\\xe0-\\xed"),
    ):
        assert said in cli("grammar", "test", grammar, text).out
    assert "GRAMMAR [TEXT]..." in cli("grammar", "test", "--help").out


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
    assert "warning: #/not: `not` is ignored" in lenient.err


def test_from_tools_writes_the_grammar_of_calls(cli: Any, tools: str) -> None:
    done = cli("grammar", "from-tools", tools)
    assert done.code == 0, done.err
    assert "1 function can be called: get_weather" in done.err
    assert done.out.startswith('root ::= "<tool_call>')
    (cli.home / "t.gbnf").write_text(done.out)
    assert cli("grammar", "check", "t.gbnf").code == 0


def test_from_tools_and_the_choice(cli: Any, tools: str) -> None:
    done = cli("grammar", "from-tools", tools, "--tool-choice", "none")
    assert (done.code, done.slug()) == (2, "invalid_value")
    assert "no call is allowed, so there is no grammar" in done.err
    assert "none" not in done.err.splitlines()[2]
    shown = " ".join(cli("grammar", "from-tools", "--help").out.split())
    assert "or the name of a function. [default: required]" in shown
    assert "[default: auto] --parallel" in " ".join(cli("generate", "--help").out.split())


@pytest.mark.parametrize(
    "command",
    [
        ("check", 'root ::= "a"\udcff'),
        ("test", 'root ::= "a"\udcff', "a"),
        ("from-schema", '{"const": "\udcff"}'),
        ("from-tools", '[{"name": "\udcff"}]'),
    ],
)
def test_bytes_of_the_command_line_that_are_no_characters_are_refused(
    cli: Any, command: tuple[str, ...]
) -> None:
    done = cli("grammar", *command)
    assert (done.code, done.slug()) == (2, "invalid_value"), done.err
    assert "not UTF-8" in done.err


def test_a_grammar_on_standard_input_has_the_limit_of_a_file(cli: Any) -> None:
    (cli.home / "long.gbnf").write_text("#" * (5 << 20))
    for given, text in (("long.gbnf", None), ("-", "#" * (5 << 20))):
        done = cli("grammar", "check", given, text=text)
        assert (done.code, done.slug()) == (2, "invalid_value"), done.err
        assert "4 MiB" in done.err


def test_what_reorders_a_line_is_not_shown(cli: Any) -> None:
    done = cli("grammar", "from-schema", '{"const": "a\u202eb"}')
    assert done.code == 0
    assert "\u202e" not in done.out + done.err
    assert "\\u202E" in done.out


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


def test_tools_come_back_when_a_grammar_is_let_go(cli: Any, tools: str) -> None:
    (cli.home / "ok.gbnf").write_text('root ::= "ok"')
    ask = "What is the weather in Rome?"
    text = f"/grammar ok.gbnf\nhi\n/show settings\n/grammar off\n/clear\n{ask}\n/show settings\n"
    done = cli("chat", "--tools", tools, "--tool-choice", "required", "--temp", "0", text=text)
    assert done.code == 0, done.err
    ok, call = done.out.splitlines()
    assert (ok, json.loads(call)["name"]) == ("ok", "get_weather")
    aside = "answers follow ok.gbnf from now on; the tools of --tools are set aside until /grammar off"
    assert aside in done.err
    assert "answers are free again, and may call the tools" in done.err
    bound, free = ({line.split()[0]: line.split()[1:] for line in part.splitlines() if line.strip()}
                   for part in done.err.split("answers are free again"))  # fmt: skip
    assert bound["grammar"] == ["ok.gbnf", "(/set)"]
    assert bound["tools"][0] == "none"
    assert free["grammar"][0] == "none"
    assert (free["tools"], free["tool_choice"]) == ([tools, "(--tools)"], ["required", "(--tool-choice)"])
    kept = cli("chat", "--tools", tools, "--temp", "0", text=f"/grammar missing.gbnf\n{ask}\n")
    assert json.loads(kept.out)["name"] == "get_weather"
