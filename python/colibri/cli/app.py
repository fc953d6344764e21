"""The verbs, loaded only when they are used, and the one place where a run ends.

Every way out of a run passes ``run``: it turns errors into the three-line message, picks the exit code,
and never lets a traceback reach the user. Imports click and nothing heavier, so that help and shell
completion answer at once.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import click

from colibri.cli import failure
from colibri.cli.console import console, not_written
from colibri.cli.interrupt import interrupts
from colibri.errors import error


@dataclass(frozen=True, slots=True)
class Verb:
    """Where a verb lives and its line in the list of commands."""

    module: str
    help: str


VERBS: dict[str, Verb] = {
    "chat": Verb("chat", "Talk to a model."),
    "generate": Verb("generate", "One prompt in, text out; made for pipes. Alias: run."),
    "pull": Verb("pull", "Download a model from the Hugging Face hub; resumable."),
    "convert": Verb("convert", "Turn a Hugging Face checkpoint into a colibri container."),
    "inspect": Verb("inspect", "What a model folder holds, from its headers alone."),
    "plan": Verb("plan", "Where the weights will live, from headers and this machine's memory."),
    "doctor": Verb("doctor", "Read-only checks of the machine and a model, each with a fix."),
    "grammar": Verb("grammar", "Work on a grammar, a schema or tools without a model."),
    "config": Verb("config", "Effective settings and where each came from."),
}
ALIASES: dict[str, str] = {"run": "generate"}


class Verbs(click.Group):
    """A group that imports a verb when it is called and lists the others from the table."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Verbs in the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Imports the verb."""
        verb = VERBS.get(ALIASES.get(cmd_name, cmd_name))
        if verb is None:
            return None
        command = importlib.import_module(f"colibri.cli.{verb.module}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Lists the verbs without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the verb, or names the nearest one."""
        name = args[0]
        command = self.get_command(ctx, name)
        if command is None:
            if name.startswith("-"):
                return super().resolve_command(ctx, args)
            why = failure.did_you_mean(name, [*VERBS, *ALIASES])
            raise error("unsupported_parameter", f'there is no command "{name}"', why, "colibri --help")
        return command.name, command, args[1:]


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from colibri.cli.version import version_line

    console().out(version_line() + "\n")
    ctx.exit(0)


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
)
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version.",
)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Run frontier mixture-of-experts language models on the PC you own.

    Without -m the embedded demo answers: a small trained model that shows the install works.
    Settings come from flags, COLIBRI_* variables, the configuration file and the model, in this order.
    """
    if ctx.invoked_subcommand is None:
        console().out(ctx.get_help() + "\n")


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code."""
    try:
        # Errors of the command line itself are objects too.
        console().json = "--json" in arguments
        # Not click's own main: it turns a closed pipe and Ctrl-C into exit code 1.
        with command.make_context("colibri", list(arguments)) as ctx:
            command.invoke(ctx)
        console().clear()
        return 0
    except click.exceptions.Exit as done:
        if sys.stdout is None and done.exit_code == 0:
            # Help was asked for, which click does not write then, and does not miss either.
            return failure.report(not_written(OSError(errno.EBADF, "standard output is closed")))
        return done.exit_code
    except BrokenPipeError:
        return failure.SIGPIPE
    except KeyboardInterrupt:
        return interrupts().exit_code or failure.SIGINT
    except Exception as fault:
        return failure.report(fault)


def main() -> None:
    """Entry point of the console script."""
    interrupts().install()
    status = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        status = status or failure.SIGPIPE
    except OSError as fault:
        # An error that has been reported leaves its text in the buffer.
        status = status or failure.report(not_written(fault))
    except (ValueError, AttributeError):
        # Standard output was closed before the program began.
        pass
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
    # Worker threads hold nothing that must be saved, and a closed pipe must not be flushed a second time.
    os._exit(status)
