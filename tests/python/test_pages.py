"""Every command in the pages runs as it stands there."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    *("README.md", "CONTRIBUTING.md", "docs/containers.md", "docs/grammar.md", "docs/python.md"),
    "docs/settings.md",
)
FENCE = re.compile(r"```sh\n(.*?)```", re.DOTALL)
SPAN = re.compile(r"`(colibri\s[^`]+)`")
# What the pages leave to the reader, and what stands for it here.
PLACES = {
    "OWNER/NAME": "some/model",
    "MODEL": "container",
    "FOLDER": "public",
    "SRC": "checkpoint",
}
# Files of the reader's that commands name.
FILES = {
    "person.json": '{"type": "object", "required": ["name", "age", "city"], "properties": {"name": {"type":'
    ' "string"}, "age": {"type": "integer"}, "city": {"type": "string"}}}',
    "tool.gbnf": 'root ::= "yes" | "no"',
    "tools.json": '[{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",'
    ' "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]',
}
# What stands before a command, or for one, and installs the package; that was done for this test.
ELSEWHERE = ("pip install . && ", "pip install '.[test]' && pytest")
# Commands that want a terminal.
INTERACTIVE = ("colibri config edit",)


def commands() -> list[str]:
    """The commands of all pages, each once, in order."""
    found: dict[str, None] = {}
    for page in PAGES:
        text = (ROOT / page).read_text("utf-8")
        lines = [line.split("#")[0].strip() for block in FENCE.findall(text) for line in block.splitlines()]
        spans = [" ".join(span.split()) for span in SPAN.findall(text)]
        for command in [*lines, *spans]:
            for other in ELSEWHERE:
                command = command.removeprefix(other)
            if "colibri" in command.split() and "..." not in command:
                found[command] = None
    return list(found)


def runnable(command: str, number: int) -> str:
    """The command with a real model where the page leaves the choice."""
    words = command.replace("git diff", "echo change")
    for place, real in PLACES.items():
        words = re.sub(rf"(?<![\w/]){place}(?![\w/])", real, words)
    fresh = f"new{number}" if " convert " in f" {words} " else "container"
    return re.sub(r"(?<![\w/])DST(?![\w/])", fresh, words)


def test_the_pages_have_commands() -> None:
    found = commands()
    verbs = {command.split("colibri ", 1)[1].split()[0] for command in found}
    assert {"generate", "chat", "plan", "pull", "convert", "inspect", "doctor", "config", "grammar"} <= verbs


@pytest.fixture
def place(cli, hub):
    """A folder with a checkpoint, containers, files of a reader's, and a hub that has some/model."""
    for name, text in FILES.items():
        (cli.home / name).write_text(text)
    source = ROOT / "tests" / "data" / "demo_hf"
    shutil.copytree(source, cli.home / "checkpoint")
    hub.add("some/model", cli.home / "checkpoint")
    cli.environment.update(HF_ENDPOINT=hub.url, NO_PROXY="127.0.0.1", EDITOR="true")
    cli.environment["PATH"] = f"{Path(cli.script).parent}:{cli.environment['PATH']}"
    done = cli("convert", "checkpoint", "container")
    assert done.code == 0, done.err
    # A container without our manifest is read as a public one.
    shutil.copytree(cli.home / "container", cli.home / "public")
    (cli.home / "public" / "colibri.json").unlink()
    return cli


def test_every_command_runs(place, terminal) -> None:
    for number, command in enumerate(commands()):
        if command in INTERACTIVE:
            assert terminal(*command.split()[1:], **place.environment).wait() == 0
            continue
        line = runnable(command, number)
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            cwd=place.home,
            env=place.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{line}\n{done.stderr.decode()}"
        assert b"Traceback" not in done.stderr
