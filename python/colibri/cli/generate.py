"""``colibri generate``: one prompt in, text out."""

from __future__ import annotations

import functools
from typing import Any

import click

from colibri.cli import answer, failure
from colibri.cli.console import console
from colibri.cli.models import choose_model, demo_line, open_model
from colibri.cli.options import (
    DOWNLOAD_SETTINGS,
    GENERATION_SETTINGS,
    MODEL_SETTINGS,
    PROMPT_SETTINGS,
    STRUCTURE_SETTINGS,
    WORK_OUTPUT,
    VerbCommand,
    takes,
)
from colibri.cli.prompt import STDIN, assemble, conversation, read_messages
from colibri.cli.structure import readers_of_standard_input, structure_of
from colibri.config import Settings


@click.command(name="generate", cls=VerbCommand)
@click.argument("prompt", nargs=-1)
@takes(
    *MODEL_SETTINGS,
    *DOWNLOAD_SETTINGS,
    *GENERATION_SETTINGS,
    *STRUCTURE_SETTINGS,
    *PROMPT_SETTINGS,
    "show_thinking",
    "confirm_over",
    "no_stats",
    *WORK_OUTPUT,
)
def command(settings: Settings, prompt: tuple[str, ...]) -> None:
    """Answer one prompt and leave.

    The prompt is made of files (-f), standard input and the words given, in this order. Standard output
    carries the answer and nothing else.
    """
    readers = readers_of_standard_input(settings) + ["-f"] * settings.texts("file").count(STDIN)
    if len(readers) > 1:
        why = f"{' and '.join(readers)} are to read standard input, which can be read once"
        raise failure.usage("- is given twice", why)
    structure = structure_of(settings)
    choice = choose_model(settings)
    request = {**_request(settings, prompt), **structure.options}
    screen = console()
    with open_model(settings, choice) as model:
        if choice.by_default:
            screen.info(demo_line(model.plan), "dim")
        given = answer.stream_answer(functools.partial(model.stream, **request), settings)
    if settings.flag("json"):
        screen.out_object(answer.as_json(choice.name, given.result, structure.notes))
    answer.show_details(given.result)
    code = given.exit_code()
    if code == failure.INCOMPLETE:
        screen.warn(given.incomplete_line())
    elif code:
        screen.info(given.stopped_line(), "dim")
        raise failure.Stop(code)
    if not settings.flag("no_stats"):
        screen.info(answer.figures(given.result, settings.thinking), "dim")
    if code:
        raise failure.Stop(code)


def _request(settings: Settings, words: tuple[str, ...]) -> dict[str, Any]:
    """The prompt as arguments of ``Model.stream``."""
    path = settings.text("messages")
    raw = settings.flag("raw")
    if raw and settings.text("tools") is not None:
        raise failure.usage("--raw does not go with --tools", "without a template the model sees no tools")
    if raw and (path is not None or settings.values["system"].source == "flag"):
        why = "without a template there is no conversation"
        raise failure.usage("--raw goes with neither --messages nor --system", why)
    messages = read_messages(path) if path is not None else []
    text = assemble(
        words,
        settings.texts("file"),
        raw=raw,
        has_messages=bool(messages),
        stdin_is_taken=bool(readers_of_standard_input(settings)),
    )
    if raw:
        return {"prompt": text, "raw": True}
    return {"messages": conversation(text, messages, settings.text("system"))}
