"""``colibri config``: the effective settings, where each came from, and the file that holds them."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import click

from colibri import config
from colibri.cli import failure
from colibri.cli.console import console, not_written
from colibri.cli.interrupt import interrupts
from colibri.cli.models import ModelChoice, choose_model, model_folder
from colibri.cli.options import (
    DOWNLOAD_SETTINGS,
    GENERATION_SETTINGS,
    MODEL_SETTINGS,
    PLAIN_OUTPUT,
    STRUCTURE_SETTINGS,
    VerbCommand,
    takes,
)
from colibri.cli.words import one_line, value_in_words
from colibri.config import Settings
from colibri.errors import ColibriError
from colibri.sampling import ModelDefaults
from colibri.settings import BY_NAME, MODELS_KEY, SEARCH_KEY, SETTINGS

TEMPLATE = """\
# Settings of colibri. Flags and COLIBRI_* variables win over this file; see: colibri config show
#
# default_model = "big"
# models_dir = ["/folder/with/models"]
# ram = "20GB"
#
# [models.big]
# path = "/folder/of/the/model"
# ctx = 16384
"""


@click.group(name="config", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Effective settings and where each came from."""
    if ctx.invoked_subcommand is None:
        console().out(ctx.get_help() + "\n")


@command.command(cls=VerbCommand)
@takes(
    *MODEL_SETTINGS,
    *DOWNLOAD_SETTINGS,
    *GENERATION_SETTINGS,
    *(name for name in STRUCTURE_SETTINGS if BY_NAME[name].key),
    "system",
    "show_thinking",
    "confirm_over",
    "no_stats",
    "progress",
    *PLAIN_OUTPUT,
    needs_all=False,
)
def show(settings: Settings) -> None:
    """Show every setting, its value, and whether flag, variable, file, model or default gave it.

    What cannot be used is named in a warning; the default is shown in its place.
    """
    _warn(settings.faults.values())
    choice = _model(settings)
    if settings.flag("json"):
        console().out_object(_as_json(settings, choice))
        return
    from colibri import engine

    rows = [("setting", "value", "from")]
    for setting in SETTINGS:
        if setting.key:
            value = settings.values[setting.name]
            shown, origin = value_in_words(setting, value.value), value.origin
            if setting.name == "threads" and value.value is None:
                shown, origin = str(engine.machine().cores_allowed), f"default ({setting.default_text})"
            rows.append((setting.name, shown, origin))
    rows.append((SEARCH_KEY, ", ".join(map(str, settings.file.models_dir)) or "none", _file_origin(settings)))
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    for row in rows:
        console().out_line(f"{row[0]:<{first}}  {row[1]:<{second}}  {row[2]}")


def _warn(faults: Iterable[ColibriError]) -> None:
    for fault in faults:
        console().warn(f"{fault.args[1]}: {fault.args[2]}")


def _model(settings: Settings) -> ModelChoice | None:
    """The model, after it has had its say; one that cannot be used does not hide the settings."""
    try:
        choice = choose_model(settings)
        settings.use_model_defaults(asdict(ModelDefaults.read(model_folder(choice)).params))
    except ColibriError as fault:
        if fault not in settings.faults.values():
            console().warn(f"{fault.args[1]} ({fault.code}): its own settings are not shown")
        return None
    return choice


def _file_origin(settings: Settings) -> str:
    return config.shorten(settings.file.path, settings.environment) if settings.file.models_dir else "default"


def _as_json(settings: Settings, choice: ModelChoice | None) -> dict[str, object]:
    return {
        "file": str(settings.file.path),
        "file_exists": settings.file.exists,
        "model": choice and {"name": choice.name, "path": choice.path, "found_by": choice.origin},
        "settings": {
            setting.name: {
                "value": settings.values[setting.name].value,
                "source": settings.values[setting.name].source,
                "from": settings.values[setting.name].origin,
            }
            for setting in SETTINGS
            if setting.key
        },
        SEARCH_KEY: [str(folder) for folder in settings.file.models_dir],
        MODELS_KEY: {name: str(table["path"]) for name, table in settings.file.models.items()},
    }


@command.command()
def path() -> None:
    """Print where the configuration file is looked for."""
    place = str(config.Environment().config_file)
    console().out((one_line(place) if console().out_is_terminal else place) + "\n")


@command.command()
def edit() -> None:
    """Open the configuration file in $VISUAL or $EDITOR and check it afterwards."""
    environment = config.Environment()
    file = environment.config_file
    if not (console().in_is_terminal and console().out_is_terminal):
        raise failure.usage(
            "config edit needs a terminal", "it opens an editor", f"write the file by hand: {file}"
        )
    editor = environment.get("VISUAL") or environment.get("EDITOR")
    if editor is not None and not _is_command(editor):
        raise failure.usage(
            f"there is no editor {editor}",
            "$VISUAL or $EDITOR names it, and it is no command on the PATH",
            f"EDITOR=nano colibri config edit    or write the file by hand: {file}",
        )
    if not file.exists():
        _create(file)
    # Ctrl-C belongs to the editor.
    with interrupts().prompt(lambda: None):
        click.edit(filename=str(file))
    written = config.ConfigFile.read(environment)
    for warning in written.warnings:
        console().warn(warning)
    _warn(written.faults.values())


def _is_command(text: str) -> bool:
    try:
        words = shlex.split(text)
    except ValueError:
        return False
    return bool(words) and shutil.which(words[0]) is not None


def _create(file: Path) -> None:
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(TEMPLATE, encoding="utf-8")
        partial.replace(file)
    except OSError as fault:
        raise not_written(fault, str(file)) from None
