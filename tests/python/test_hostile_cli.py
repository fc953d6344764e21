"""The command line among enemies: endless files, escapes in names, a system that has nothing left."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINT = ROOT / "tests" / "data" / "demo_hf"
DEMO = ROOT / "python" / "colibri" / "data" / "demo"
# Bytes of memory that reading an endless file would pass at once.
MEMORY = 3 << 30


def limited(cli, *arguments: str, stdin: int = subprocess.DEVNULL, **limits: int) -> Any:
    """Runs the program with limits of the system."""

    def apply() -> None:
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, name), (value, value))

    process = subprocess.Popen(
        [cli.script, *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cli.home,
        env=cli.environment,
        preexec_fn=apply,
    )
    return cli.end(process)


def test_endless_files_end_at_the_limit(cli) -> None:
    for arguments in (("generate", "-f", "/dev/zero", "x"), ("generate", "--messages", "/dev/zero")):
        done = limited(cli, *arguments, RLIMIT_AS=MEMORY)
        assert (done.code, done.slug()) == (4, "context_length_exceeded")
        assert "64 MiB" in done.err
    with Path("/dev/zero").open("rb") as endless:
        for verb in (("generate", "-f", "-"), ("chat",)):
            done = limited(cli, *verb, stdin=endless.fileno(), RLIMIT_AS=MEMORY)
            assert (done.code, done.slug()) == (4, "context_length_exceeded")


def test_a_prompt_far_too_long_is_refused_before_the_template(cli) -> None:
    done = cli("generate", text="word " * 4_000_000)
    assert (done.code, done.slug()) == (4, "context_length_exceeded")
    assert "at least" in done.err


def test_files_that_are_none_do_not_end_a_chat(cli) -> None:
    os.mkfifo(cli.home / "pipe")
    text = "/file /dev/zero\n/file pipe\n/file .\n/file absent\n/file ~nobody-of-this-name\nhello\n"
    done = cli("chat", "-n", "2", "--temp", "0", text=text)
    assert done.code == 0
    assert done.err.count("error[invalid_value]") == 5
    assert done.out.strip()


def test_a_pipe_may_be_a_prompt(cli) -> None:
    os.mkfifo(cli.home / "pipe")
    threading.Thread(target=(cli.home / "pipe").write_text, args=("Tell me a story.",)).start()
    done = cli("generate", "-f", "pipe", "-n", "2")
    assert done.code == 0


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("generate", "--timeout", "1e308", "x"), "--timeout"),
        (("generate", "--timeout", "999999999h", "x"), "10000d"),
        (("generate", "--seed", "9" * 5000, "x"), "from 0 to 18446744073709551615"),
        (("generate", "--seed", str(2**64), "x"), "from 0 to 18446744073709551615"),
        (("generate", "-n", str(2**31), "x"), "from 1 to 2147483647"),
        (("generate", "--temp", "9" * 5000, "x"), "from 0 to 100"),
        (("generate", "--ram", "1KB", "x"), "MB, GB or TB"),
        (("generate", "--ctx", "9" * 5000, "x"), "number of tokens"),
    ],
)
def test_numbers_too_large_are_refused_with_the_limit(cli, arguments: tuple[str, ...], hint: str) -> None:
    done = cli(*arguments)
    assert (done.code, done.slug()) == (2, "invalid_value")
    assert hint in done.err


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "x", "tool_calls": 5},
        {"role": "assistant", "content": "x", "tool_calls": "abc"},
        {"role": "assistant", "content": "x", "tool_calls": {"a": 1}},
        {"role": "assistant", "content": "x", "tool_calls": [5]},
        {"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": 5}}]},
        {"role": "assistant", "content": "x", "reasoning_content": 5},
        {"role": "assistant", "content": None, "reasoning_content": [1]},
        {"role": "user", "content": [{"type": "image_url"}]},
        {"role": ["user"], "content": "x"},
        {"role": "user", "content": {"text": "x"}},
    ],
)
def test_messages_of_a_wrong_form_are_refused(cli, message: dict[str, Any]) -> None:
    (cli.home / "m.json").write_text(json.dumps([message]))
    done = cli("generate", "--messages", "m.json")
    assert (done.code, done.slug()) == (2, "invalid_value")


def test_a_conversation_of_numbers_too_long_is_refused(cli) -> None:
    (cli.home / "m.json").write_text('[{"role": "user", "content": ' + "9" * 5000 + "}]")
    done = cli("generate", "--messages", "m.json")
    assert (done.code, done.slug()) == (2, "invalid_value")


def test_a_history_with_the_character_0_does_not_stop_a_chat(cli, terminal) -> None:
    file = cli.home / "state" / "colibri" / "history"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"one\0two\nthree\xff\n\0\n")
    screen = terminal("chat")
    screen.expect(">>> ")
    screen.send("/bye\r")
    assert screen.wait() == 0
    assert b"error" not in screen.seen


@pytest.mark.parametrize("place", ["/dev/zero", "pipe"])
def test_a_history_that_is_no_file_is_left_alone(cli, terminal, place: str) -> None:
    file = cli.home / "state" / "colibri" / "history"
    file.parent.mkdir(parents=True)
    os.mkfifo(cli.home / "pipe")
    file.symlink_to(cli.home / "pipe" if place == "pipe" else place)
    screen = terminal("chat")
    screen.expect(">>> ")
    screen.send("/bye\r")
    assert screen.wait() == 0


@pytest.mark.parametrize("editor", ['"', "sh '", "''", "   "])
def test_an_editor_that_is_no_command_is_an_error(cli, terminal, editor: str) -> None:
    screen = terminal("config", "edit", EDITOR=editor)
    assert screen.wait() == 2
    assert b"there is no editor" in screen.seen


VERBS = (("--help",), ("inspect", "demo"), ("plan",), ("config", "show"), ("generate", "-n", "2", "hi"))


@pytest.mark.parametrize("arguments", VERBS, ids=" ".join)
def test_without_a_thread_to_watch_signals_every_verb_works(cli, arguments: tuple[str, ...]) -> None:
    code = (
        "import sys, threading\n"
        'def start(self): raise RuntimeError("can\'t start new thread")\n'
        "threading.Thread.start = start\n"
        f"sys.argv = ['colibri', *{arguments!r}]\n"
        "from colibri.cli import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=cli.environment, cwd=cli.home, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert done.stdout


@pytest.mark.parametrize("descriptors", [5, 6, 7])
def test_without_descriptors_every_verb_ends_cleanly(cli, descriptors: int) -> None:
    for arguments in VERBS:
        done = limited(cli, *arguments, RLIMIT_NOFILE=descriptors)
        assert "Traceback" not in done.err
        assert "error[internal]" not in done.err
        assert done.code == 0 or done.slug()


def test_places_that_the_system_cannot_look_at_hold_no_model(cli) -> None:
    for name in ("a" * 5000, "a/" * 3000, "./" + "a" * 300, "~nobody-of-this-name", "~nobody-of-this-name/x"):
        for verb in (("inspect",), ("plan",), ("generate", "hi", "-m")):
            done = cli(*verb, name)
            assert done.code in (2, 3)
            assert done.slug() in ("model_not_found", "invalid_value")


@pytest.mark.parametrize("name", [".", "..", "./x", "x"])
def test_a_working_folder_that_is_gone_holds_no_model(cli, name: str) -> None:
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    command = ["sh", "-c", script, "sh", cli.script, "inspect", name]
    done = subprocess.run(command, env=cli.environment, cwd=cli.home, capture_output=True, timeout=60)
    assert done.returncode == 3, done.stderr
    assert b"error[model_not_found]" in done.stderr


def test_a_failure_to_read_is_not_called_one_to_write(cli) -> None:
    descriptor = os.open(cli.home / "unreadable", os.O_WRONLY | os.O_CREAT)
    done = cli.end(cli.start("generate", "-f", "-", "x", stdin=descriptor))
    os.close(descriptor)
    assert (done.code, done.slug()) == (2, "invalid_value")
    assert "cannot read standard input" in done.err


ESCAPES = "\x1b]0;title\x07\x1b[31mred\x9b31m\nfits: yes\u202eevil"


def hostile_model(folder: Path) -> Path:
    """The embedded model with terminal escapes wherever a name of its own is shown."""
    target = folder / f"m\x1b[31m\n\x9b2J{'x'}"
    shutil.copytree(DEMO, target)
    file = target / "colibri.json"
    value = json.loads(file.read_text())
    for key in ("writer", "source"):
        names = value[key] if isinstance(value.get(key), dict) else {}
        for name in names:
            if isinstance(names[name], str):
                names[name] = ESCAPES
        if isinstance(value.get(key), str):
            value[key] = ESCAPES
    file.write_text(json.dumps(value))
    return target


def test_no_text_of_a_model_reaches_the_terminal_as_a_command(cli, terminal) -> None:
    model = str(hostile_model(cli.home))
    file = cli.config("")
    file.write_text(f'[models."a\\u001b[31m"]\npath = {json.dumps(model)}\n', encoding="utf-8")
    for arguments in (
        ("inspect", model),
        ("inspect", model, "-v"),
        ("plan", model),
        ("generate", "hi", "-n", "1", "-m", model, "-v"),
        ("inspect", model, "--json"),
        ("inspect", model + "absent"),
        ("config", "show", "-m", "a\x1b[31m"),
        ("chat", "-m", model),
    ):
        screen = terminal(*arguments, NO_COLOR="1")
        if arguments[0] == "chat":
            screen.expect(">>> ")
            screen.send("/show model\r")
            screen.expect(">>> ")
            screen.send("/bye\r")
        screen.wait()
        text = screen.seen.decode()
        # What the line editor and progress write themselves.
        for own in ("\x1b[?2004h", "\x1b[?2004l", "\x1b[K"):
            text = text.replace(own, "")
        assert not set("\x1b\x07\x9b\u202e") & set(text), (arguments, text)
        assert not any(line.startswith("fits: yes\u202e") for line in text.splitlines())


def test_reports_are_harmless_in_a_file_too(cli) -> None:
    done = cli("inspect", str(hostile_model(cli.home)), "-v")
    assert done.code == 0
    assert not set("\x1b\x07\x9b\u202e") & set(done.out)
    assert "fits: yes" not in done.out.splitlines()


def test_help_without_a_standard_output_is_an_error(cli) -> None:
    for arguments in (["--help"], ["generate", "--help"], ["--version"], ["config", "path"]):
        command = ["sh", "-c", 'exec "$@" >&-', "sh", cli.script, *arguments]
        done = subprocess.run(command, env=cli.environment, cwd=cli.home, stderr=subprocess.PIPE)
        assert done.returncode == 4, arguments
        assert b"error[output_not_writable]" in done.stderr


def test_a_chat_through_a_pipe_refuses_what_is_no_text(cli) -> None:
    done = cli("chat", "-n", "2", text=b"hello\nab\xff\n")
    assert (done.code, done.slug()) == (2, "invalid_value")
    assert "standard input is not UTF-8" in done.err


def test_lines_of_a_pipe_are_taken_one_by_one(cli) -> None:
    done = cli("chat", "-n", "2", "--temp", "0", text=b"\n  \r\nhello\r\n\nhello\nno end of line")
    assert done.code == 0
    assert done.err.count("tok/s") == 3


def test_ctrl_c_while_the_program_starts_is_no_traceback(cli) -> None:
    code = (
        "import importlib.util, os, signal, sys\n"
        "class Press:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'click': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Press())\n"
        "from colibri.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=cli.environment, timeout=60)
    assert done.returncode == -signal.SIGINT
    assert done.stderr == b""


def test_a_timeout_covers_the_encoding_of_a_long_prompt(cli) -> None:
    tokenizer = json.loads((CHECKPOINT / "tokenizer.json").read_text())
    # Nothing can be said about the length of a text that is changed first.
    tokenizer["normalizer"] = {"type": "Lowercase"}
    model = cli.home / "model"
    shutil.copytree(CHECKPOINT, model)
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    (cli.home / "long").write_text("tell me a story " * 900_000)
    done = cli("generate", "-m", str(model), "-f", "long", "--timeout", "1")
    assert (done.code, done.slug()) == (124, "timeout")


def test_pipes_in_a_model_are_no_reason_to_hang(cli) -> None:
    model = cli.home / "model"
    shutil.copytree(CHECKPOINT, model)
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
        kept = (model / name).read_bytes()
        (model / name).unlink()
        os.mkfifo(model / name)
        done = cli("generate", "-m", str(model), "hi")
        assert done.code == 3
        assert name in done.err
        (model / name).unlink()
        (model / name).write_bytes(kept)


def processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_encoding_of_a_long_prompt(cli, number: int, code: int) -> None:
    model = cli.home / "model"
    shutil.copytree(CHECKPOINT, model)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["normalizer"] = {"type": "Lowercase"}
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    (cli.home / "long").write_text("tell me a story " * 1_000_000)
    process = cli.start("generate", "-m", str(model), "-f", "long")
    # Nothing else here takes so long.
    while processor_seconds(process.pid) < 1.5:
        time.sleep(0.02)
    process.send_signal(number)
    done = cli.end(process)
    assert (done.code, done.out) == (code, "")
    assert "Traceback" not in done.err
