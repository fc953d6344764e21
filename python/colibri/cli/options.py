"""Options of the verbs, generated from the table of settings.

A verb names the settings it takes; their flags, help and defaults come from the table, and the verb
receives one ``Settings`` object in which flag, environment, file and default have been weighed. Help
shows what would be used now, so a value from the configuration file stands where the built-in default
would.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from colibri import config
from colibri.cli.console import console
from colibri.cli.words import value_in_words
from colibri.config import Settings
from colibri.setting_kinds import BOOLEAN
from colibri.settings import (
    BY_NAME,
    DOWNLOAD,
    GENERATION,
    MODEL,
    OUTPUT,
    PROMPT,
    SETTINGS,
    STRUCTURE,
    Setting,
)

MODEL_SETTINGS = tuple(setting.name for setting in SETTINGS if setting.group == MODEL)
DOWNLOAD_SETTINGS = tuple(setting.name for setting in SETTINGS if setting.group == DOWNLOAD)
GENERATION_SETTINGS = tuple(setting.name for setting in SETTINGS if setting.group == GENERATION)
STRUCTURE_SETTINGS = tuple(setting.name for setting in SETTINGS if setting.group == STRUCTURE)
PROMPT_SETTINGS = tuple(setting.name for setting in SETTINGS if setting.group == PROMPT)
# Colour and quiet concern warnings and errors, which every verb can have.
PLAIN_OUTPUT = ("json", "quiet", "color")
WORK_OUTPUT = ("json", "quiet", "verbose", "color", "progress")


class SettingType(click.ParamType[Any]):
    """A click type that parses as the table says."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.name = setting.kind.metavar or "flag"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parses one value; click turns the failure into a usage error."""
        if value is None:
            return None
        try:
            return self.setting.kind.parse(value)
        except ValueError as error:
            self.fail(f'"{value}" was given; {error}', param, ctx)


class SettingOption(click.Option):
    """An option that knows its line in the table."""

    def __init__(self, *args: Any, setting: Setting, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.setting = setting

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Help with the value that would be used now."""
        record = super().get_help_record(ctx)
        if record is None:
            return None
        flags, text = record
        shown = effective_default(self.setting) if self.name == self.setting.name else ""
        return flags, f"{text}  [default: {shown}]" if shown else text


def effective_default(setting: Setting) -> str:
    """What would be used now, in words; empty where that is what everybody expects."""
    value = config.load()[setting.name] if setting.key else setting.default
    if value == setting.default:
        # "off" and "nothing" are what everybody expects of a flag.
        return "" if value is False or setting.name == "verbose" else setting.describe_default
    return value_in_words(setting, value)


class VerbCommand(click.Command):
    """A command whose help lists the options under the headings of the table."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes one section per group."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Argument):
                continue
            record = parameter.get_help_record(ctx)
            if record is not None:
                group = parameter.setting.group if isinstance(parameter, SettingOption) else "options"
                sections.setdefault(group, []).append(record)
        for group in ("options", MODEL, DOWNLOAD, GENERATION, STRUCTURE, PROMPT, OUTPUT):
            if group in sections:
                with formatter.section(group[0].upper() + group[1:]):
                    formatter.write_dl(sections[group])


def _declare(setting: Setting) -> list[Callable[[Any], Any]]:
    names = [setting.name, *setting.flags]
    rest: dict[str, Any] = {"cls": SettingOption, "setting": setting, "help": setting.help, "default": None}
    if setting.kind is BOOLEAN:
        if setting.negative:
            names[-1] += "/" + setting.negative[0]
        return [click.option(*names, is_flag=True, **rest)]
    if setting.name == "verbose":
        return [click.option(*names, count=True, **rest)]
    options = [
        click.option(
            *names, type=SettingType(setting), multiple=setting.repeated, metavar=setting.kind.metavar, **rest
        )
    ]
    for negative in setting.negative:
        rest["help"] = f"The same as {setting.flag} never."
        options.append(click.option(f"no_{setting.name}", negative, is_flag=True, **rest))
    return options


def takes(
    *settings: str | Setting, needs_all: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a verb the options of these settings and calls it with the effective ``Settings`` first.

    A setting is named, or given as a line of the table with a help and a default of this verb's own.
    A value of the environment or the file that cannot be used is an error; for a verb that does not need
    all of them only when it asks for that one (``Settings.need``).
    """

    lines = [BY_NAME[one] if isinstance(one, str) else one for one in settings]
    names = tuple(line.name for line in lines)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **rest: Any) -> Any:
            effective = _settings(names, rest)
            if needs_all:
                effective.need(*effective.faults)
            return function(effective, *args, **rest)

        decorated: Callable[..., Any] = call
        for line in reversed(lines):
            for option in reversed(_declare(line)):
                decorated = option(decorated)
        return decorated

    return decorate


def _settings(names: tuple[str, ...], rest: dict[str, Any]) -> Settings:
    ctx = click.get_current_context()
    given: dict[str, object] = {}
    for name in names:
        value, off = rest.pop(name), rest.pop(f"no_{name}", None)
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            given[name] = value
        if off:
            given[name] = "never"
    settings = config.load(given)
    console().configure(
        quiet=settings.flag("quiet"),
        verbose=settings.integer("verbose") or 0,
        colour=settings.text("color") or "auto",
        json=settings.flag("json"),
    )
    for warning in settings.warnings:
        console().warn(warning)
    settings.warnings.clear()
    return settings
