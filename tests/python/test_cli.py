"""The command line as a whole: table of verbs, help, version, usage errors, settings, generated documents."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from colibri.cli.app import VERBS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(cli, verb: str) -> None:
    done = cli(verb, "--help")
    assert done.code == 0
    assert done.err == ""
    assert f"colibri {verb}" in done.out


# What takes long to import; none of it is needed to say what the program can do.
HEAVY = {
    *("numpy", "tokenizers", "jinja2", "huggingface_hub", "httpx", "requests", "asyncio", "ssl"),
    *("http.client", "colibri._native", "colibri.engine", "colibri.hub", "colibri.cli.chat"),
}


def test_help_lists_every_verb_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; before = len(sys.modules); from colibri.cli.app import run; status = run(['--help']);"
        "print(len(sys.modules) - before, *sys.modules, file=sys.stderr); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0
    added, *loaded = done.stderr.split()
    assert not HEAVY & set(loaded)
    # Modules of the standard library and of click included; each costs about a third of a millisecond.
    assert int(added) < 150
    for verb in VERBS:
        assert re.search(rf"^  {verb} ", done.stdout, re.MULTILINE)


def test_no_arguments_print_the_help(cli) -> None:
    done = cli()
    assert done.code == 0
    assert "Commands:" in done.out


def test_config_alone_prints_its_help(cli) -> None:
    done = cli("config")
    assert (done.code, done.err) == (0, "")
    assert "edit" in done.out


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version_names_program_core_and_interpreter(cli, flag: str) -> None:
    done = cli(flag)
    assert done.code == 0
    assert re.fullmatch(r"colibri \d+\.\d+\.\d+ \(core [^,]+, \w+, python 3\.\d+\)\n", done.out)
    assert done.err == ""


@pytest.mark.parametrize(
    ("arguments", "slug", "hint"),
    [
        (["genrate"], "unsupported_parameter", "generate"),
        (["generate", "--top-q", "1", "x"], "unsupported_parameter", "--top-"),
        (["generate", "--top-p", "1.5", "x"], "invalid_value", "from 0 to 1"),
        (["generate", "--temp", "hot", "x"], "invalid_value", "--temp"),
        (["generate", "--ram", "20", "x"], "invalid_value", "20GB"),
        (["generate", "-c", "0", "x"], "invalid_value", "tokens"),
        (["generate", "--timeout", "soon", "x"], "invalid_value", "10m"),
        (["generate", "-n"], "invalid_value", "-n"),
        (["generate", "--repeat-penalty", "0", "x"], "invalid_value", "--repeat-penalty"),
        (["generate", "--min-p", "2", "x"], "invalid_value", "from 0 to 1"),
        (["generate", "--temp", "-1", "x"], "invalid_value", "from 0 to 100"),
        (["generate", "--temp", "nan", "x"], "invalid_value", "from 0 to 100"),
        (["generate", "-m", "", "x"], "invalid_value", "OWNER/NAME"),
        (["generate"], "invalid_value", "there is no prompt"),
        (["generate", "-f", "absent.txt", "x"], "invalid_value", "absent.txt"),
        (["generate", "--messages", "absent.json"], "invalid_value", "absent.json"),
        (["generate", "--raw", "-s", "be brief", "x"], "invalid_value", "--raw"),
        (["convert", "only-one"], "invalid_value", "DST"),
        (["convert", "a", "b", "--experts", "q5"], "invalid_value", "q4g64"),
        (["plan", "demo", "surplus"], "invalid_value", "surplus"),
        (["plan", "demo", "-m", "other"], "invalid_value", "-m other"),
        (["inspect", "demo", "-m", "other"], "invalid_value", "-m other"),
        (["generate", "-n", "0", "x"], "invalid_value", "-n / --max-tokens"),
        (["generate", "--temp", "hot", "x"], "invalid_value", "--temp / --temperature"),
        (["generate", "--stop", "", "x"], "invalid_value", "not empty"),
        (["generate", "--raw", "--messages", "m.json"], "invalid_value", "colibri generate --help"),
        (["generate", "-f", "absent.txt", "x"], "invalid_value", "colibri generate --help"),
        (["generate", "--ram", "20X", "x"], "invalid_value", "20GB"),
        (["config", "nothing"], "invalid_value", "nothing"),
    ],
)
def test_usage_errors_exit_2_with_slug_and_hint(cli, arguments: list[str], slug: str, hint: str) -> None:
    done = cli(*arguments)
    assert done.code == 2
    assert done.slug() == slug
    assert hint in done.err
    assert done.out == ""


def test_messages_that_are_no_conversation_are_refused(cli) -> None:
    for text in ("{", "[]", "[1]", '[{"role": "user"}]', '{"messages": 3}', "[" * 100000):
        (cli.home / "m.json").write_text(text)
        done = cli("generate", "--messages", "m.json")
        assert (done.code, done.slug()) == (2, "invalid_value")
        assert "m.json" in done.err


def test_a_file_that_is_no_text_is_named_with_the_place(cli) -> None:
    (cli.home / "binary").write_bytes(b"abc\xff\xfe")
    done = cli("generate", "-f", "binary", "x")
    assert (done.code, done.slug()) == (2, "invalid_value")
    assert "binary is not UTF-8" in done.err
    assert "byte 3" in done.err


def test_config_show_tells_the_source_of_each_value(cli) -> None:
    cli.config('ctx = 1024\nram = "3GB"\n[models.m]\npath = "x"\n')
    done = cli("config", "show", "--top-k", "7", COLIBRI_RAM="2GB", COLIBRI_THREAD="4")
    rows = {line.split()[0]: re.split(r"\s{2,}", line) for line in done.out.splitlines()}
    assert rows["top_k"][1:] == ["7", "--top-k"]
    assert rows["ram"][1:] == ["2GB", "COLIBRI_RAM"]
    assert rows["ctx"][1] == "1024"
    assert rows["ctx"][2].endswith("config.toml")
    assert rows["temp"][1:] == ["0.7", "model generation_config.json"]
    assert rows["max_tokens"][1:] == ["1024", "default"]
    assert done.err == "warning: COLIBRI_THREAD is not a setting. Did you mean COLIBRI_THREADS?\n"
    assert done.code == 0


def test_config_show_as_json(cli) -> None:
    file = cli.config('[models.m]\npath = "/x"\n')
    value = json.loads(cli("config", "show", "--json", "--temp", "0.2").out)
    assert value["version"] == 1
    assert value["file"] == str(file)
    assert value["file_exists"] is True
    assert value["settings"]["temp"] == {"value": 0.2, "source": "flag", "from": "--temp"}
    assert value["settings"]["top_p"]["source"] == "model"
    assert value["models"] == {"m": "/x"}


def test_config_show_has_one_style(cli) -> None:
    cli.config('confirm_over = 90\ntimeout = "1h30m"\nno_stats = true\nquiet = false\n')
    rows = {line.split()[0]: re.split(r"\s{2,}", line) for line in cli("config", "show").out.splitlines()}
    assert (rows["confirm_over"][1], rows["timeout"][1]) == ("1m30s", "1h30m")
    assert (rows["no_stats"][1], rows["quiet"][1]) == ("on", "off")
    assert rows["threads"][1].isdigit()
    assert rows["threads"][2] == "default (physical cores)"
    assert "[default: on]" in cli("generate", "--help").out


BROKEN = {
    "a value": ('ctx = "many"\ntemp = 0.3\n', "ctx"),
    "a boolean": ("ram = true\ntemp = 0.3\n", "is true"),
    "no TOML": ("ctx = \n", "TOML"),
    "a model": ("temp = 0.3\n[models.big]\nctx = 4\n", "big"),
    "models_dir": ("models_dir = 5\ntemp = 0.3\n", "models_dir"),
    "no table of models": ("models = 4\ntemp = 0.3\n", "models"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_file_stops_only_what_needs_it(cli, fault: str) -> None:
    text, hint = BROKEN[fault]
    cli.config(text)
    for arguments in (("generate", "hi"), ("chat",), ("plan",)):
        done = cli(*arguments)
        assert (done.code, done.slug(), done.out) == (2, "invalid_value", "")
        assert hint in done.err
    assert cli("inspect", "demo").code == 0
    assert cli("config", "path").code == 0
    assert cli("generate", "--help").code == 0
    tiny = str(ROOT / "tests" / "oracle" / "glm_tiny")
    assert cli("convert", tiny, "out", "--dry-run").code == 0
    shown = cli("config", "show")
    assert shown.code == 0
    assert shown.err.startswith("warning: ")
    assert hint in shown.err
    # A file that is no TOML says nothing, not even which model is meant.
    expected = "1.0" if fault == "no TOML" else "0.3"
    assert re.search(rf"^temp +{expected} ", shown.out, re.MULTILINE)


def test_every_bad_line_and_variable_is_a_warning_of_config_show(cli) -> None:
    cli.config('ctx = "many"\nio = "tape"\ntop_k = 5\n')
    done = cli("config", "show", COLIBRI_SEED="x")
    assert done.code == 0
    assert done.err.count("warning: ") == 3
    for name in ("ctx", "io", "COLIBRI_SEED"):
        assert name in done.err
    assert re.search(r"^top_k +5 ", done.out, re.MULTILINE)


def test_a_model_in_a_broken_table_is_named_by_its_fault(cli) -> None:
    cli.config("[models.big]\nctx = 4\n")
    done = cli("inspect", "big")
    assert (done.code, done.slug()) == (2, "invalid_value")
    assert "has no path" in done.err


def test_config_show_works_with_a_model_that_is_gone(cli) -> None:
    cli.config('default_model = "/gone"\n')
    done = cli("config", "show")
    assert done.code == 0
    assert "/gone" in done.out
    assert "model_not_found" in done.err


def test_help_shows_the_value_of_the_file_as_the_default(cli) -> None:
    cli.config("ctx = 1234\n")
    assert "[default: 1234]" in cli("generate", "--help").out


def test_config_path_and_edit(cli, terminal) -> None:
    path = cli("config", "path").out.rstrip("\n")
    assert path == str(cli.home / "config" / "colibri" / "config.toml")
    refused = cli("config", "edit")
    assert (refused.code, refused.slug()) == (2, "invalid_value")
    editor = cli.home / "editor"
    editor.write_text('#!/bin/sh\necho "ctxx = 5" >> "$1"\n')
    editor.chmod(0o755)
    screen = terminal("config", "edit", VISUAL=str(editor))
    assert screen.wait() == 0
    assert b"Did you mean ctx?" in screen.seen
    assert Path(path).read_text().endswith("ctxx = 5\n")
    screen = terminal("config", "edit", EDITOR="nonesuch")
    assert screen.wait() == 2
    assert b"there is no editor nonesuch" in screen.seen
    assert b"EDITOR=nano" in screen.seen


FAILING = {
    "generate": ("generate", "-c", "32", "word " * 100),
    "chat": ("chat", "-m", "absent"),
    "plan": ("plan", "--ram", "1MB"),
    "inspect": ("inspect", "absent"),
    "convert": ("convert", "absent", "out"),
    "config": ("config", "show", "--temp", "hot"),
    "usage": ("generate", "--top-q", "1"),
}


@pytest.mark.parametrize("case", FAILING)
def test_errors_are_the_same_object_everywhere(cli, case: str) -> None:
    plain, done = cli(*FAILING[case]), cli(*FAILING[case], "--json")
    assert done.code == plain.code != 0
    (line,) = done.out.splitlines()
    value = json.loads(line)
    assert set(value) == {"version", "error"}
    assert set(value["error"]) == {"code", "message", "why", "fix"}
    assert value["error"]["code"] == plain.slug()


def test_an_object_is_one_line_and_says_all(cli) -> None:
    tiny = str(ROOT / "tests" / "oracle" / "glm_tiny")
    for arguments in (
        ("generate", "hi", "-n", "2"),
        ("plan",),
        ("inspect", "demo"),
        ("config", "show"),
        ("convert", tiny, "out", "--dry-run"),
    ):
        done = cli(*arguments, "--json")
        assert (done.code, done.err) == (0, "")
        (line,) = done.out.splitlines()
        assert json.loads(line)["version"] == 1
    assert "seed" in cli("generate", "hi", "-n", "2", "--json", "-v").err


def test_sa_09_foreign_variables_have_no_effect(cli) -> None:
    """SA-09."""
    done = cli(
        "config", "show", TEMP="/var/tmp", TMPDIR="/x", TEMPERATURE="abc", TOP_P="9", MODEL="nowhere", RAM="1"
    )
    assert done.code == 0
    assert done.err == ""
    assert done.out == cli("config", "show").out


def test_sa_09_a_bad_value_of_an_own_variable_is_an_error_naming_it(cli) -> None:
    """SA-09."""
    done = cli("generate", "hi", COLIBRI_TEMP="/var/tmp")
    assert (done.code, done.slug()) == (2, "invalid_value")
    assert "COLIBRI_TEMP" in done.err
    assert done.out == ""


def test_colour_follows_the_rules(cli, terminal) -> None:
    wrong = ("generate", "--temp", "hot", "x")
    assert "\x1b" not in cli(*wrong).err
    assert "\x1b[" in cli(*wrong, CLICOLOR_FORCE="1").err
    assert "\x1b" not in cli(*wrong, CLICOLOR_FORCE="1", NO_COLOR="1").err
    for variables, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        screen = terminal("plan", "-m", "absent", **variables)
        screen.wait()
        assert (b"\x1b[" in screen.seen) is coloured
    for flags, coloured in (
        (("--color", "always"), True),
        (("--color", "never"), False),
        (("--no-color",), False),
    ):
        assert ("\x1b[" in cli("plan", "-m", "absent", *flags, CLICOLOR_FORCE="1").err) is coloured


def test_a_terminal_without_unicode_gets_ascii(cli) -> None:
    done = cli("generate", "--temp", "0", "-n", "1", "hi", PYTHONIOENCODING="ascii")
    assert done.code == 0
    assert done.err.isascii()
    assert "using the built-in demo" in done.err


def test_standard_streams_may_be_closed(cli) -> None:
    for redirection in ("<&-", "2>&-", "<&- 2>&-"):
        script = f'exec "$@" {redirection}'
        command = ["sh", "-c", script, "sh", cli.script, "--version"]
        done = subprocess.run(command, env=cli.environment, cwd=cli.home, stdout=subprocess.PIPE)
        assert done.returncode == 0
        assert done.stdout.startswith(b"colibri ")


def test_generated_documents_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "generate_docs.py", "--check"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr


def test_the_package_runs_as_a_module(cli) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "colibri", "config", "path"],
        capture_output=True,
        text=True,
        env=cli.environment,
    )
    assert done.returncode == 0
    assert done.stdout == cli("config", "path").out


def test_an_unexpected_error_is_a_report_and_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    from colibri.cli import app, config

    def broken() -> None:
        raise RuntimeError("a surprise")

    monkeypatch.setattr(config.command.commands["path"], "callback", broken)
    assert app.run(["config", "path"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("error[internal]: RuntimeError: a surprise\n")
    assert "please report" in shown
    assert "Traceback" not in shown
