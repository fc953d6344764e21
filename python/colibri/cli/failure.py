"""How a run fails: every error becomes the three-line message and an exit code.

A message says what happened, why, and what to do: ``error[slug]: what``, ``why:``, ``fix:``. Slugs and
exit codes are those of ``colibri.errors``; errors of the command line itself and of the operating system
are translated into them here.
"""

from __future__ import annotations

import contextlib
import errno
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

import click

from colibri.cli.console import console
from colibri.cli.interrupt import interrupts
from colibri.config import nearest
from colibri.errors import ColibriError, error

# A structured answer that was cut before it could end.
INCOMPLETE = 10
SIGHUP, SIGINT, SIGPIPE, SIGTERM, TIMEOUT = 129, 130, 141, 143, 124


class Stop(Exception):
    """The run ends now with this exit code; everything there was to say has been said."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


def usage(what: str, why: str = "", fix: str = "") -> ColibriError:
    """The error for a command line that cannot be right; without a better fix it names the help."""
    return error("invalid_value", what, why or None, fix or help_command())


def help_command() -> str:
    """The command that prints the help of the command that runs."""
    ctx = click.get_current_context(silent=True)
    return f"{ctx.command_path if ctx else 'colibri'} --help"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A sentence that names the nearest of ``names``, or all of them when none is near."""
    known = list(names)
    guess = nearest(name, known)
    return f"did you mean {guess}?" if guess else f"known are {', '.join(known)}"


def report(fault: Exception) -> int:
    """Prints the message of any error and returns the exit code.

    With --json standard output carries the same as an object, whatever the command.
    """
    if isinstance(fault, Stop):
        return fault.exit_code
    shown = fault if isinstance(fault, ColibriError) else _translated(fault)
    if shown.code == "cancelled" and interrupts().exit_code:
        console().line(_stopped(shown.message), "dim")
        if shown.fix:
            console().line(shown.args[3], "dim")
        return interrupts().exit_code
    # `args` hold the words of the command line; the attributes are for Python.
    code, message, why, fix = shown.args
    console().error(code, message, why or "", fix or "")
    if console().json:
        problem = {"code": code, "message": message, "why": why, "fix": fix}
        with contextlib.suppress(OSError):
            console().out_object({"error": problem})
    return shown.exit_status


def _stopped(message: str) -> str:
    """What a signal stopped; the core's own message says no more than that."""
    by = {SIGTERM: " by SIGTERM", SIGHUP: " by SIGHUP"}.get(interrupts().exit_code, "")
    return f"stopped{by}" if message == "stopped" else f"stopped{by}: {message}"


def _translated(fault: Exception) -> ColibriError:
    if isinstance(fault, click.ClickException):
        return _usage(fault)
    if isinstance(fault, MemoryError):
        return error("ram_budget_too_small", "the memory is used up", None, "free memory, or send less")
    if isinstance(fault, OSError) and fault.errno is not None:
        place = f"access to {fault.filename}" if fault.filename else "what was asked of it"
        return error(
            "disk_read_failed", f"the system refused {place}", fault.strerror, _REMEDY.get(fault.errno)
        )
    return _unexpected(fault)


_REMEDY = {
    errno.EMFILE: "allow more open files:  ulimit -n 1024",
    errno.ENFILE: "close other programs: the system has no file left to open",
    errno.ENOMEM: "free memory",
}


def _usage(fault: click.ClickException) -> ColibriError:
    ctx = getattr(fault, "ctx", None)
    fix = f"{ctx.command_path if ctx else 'colibri'} --help"
    if isinstance(fault, click.NoSuchOption):
        known = [name for parameter in ctx.command.params for name in parameter.opts] if ctx else []
        why = did_you_mean(fault.option_name, known) if nearest(fault.option_name, known) else None
        return error("unsupported_parameter", f"there is no option {fault.option_name}", why, fix)
    if isinstance(fault, click.MissingParameter):
        name = fault.param.human_readable_name if fault.param else "a value"
        return error("invalid_value", f"{name} is missing", None, fix)
    if isinstance(fault, click.BadParameter) and fault.param is not None:
        is_option = fault.param.param_type_name == "option"
        # All spellings: click does not say which one was typed.
        name = " / ".join(fault.param.opts) if is_option else fault.param.human_readable_name
        return error("invalid_value", f"{name} has a wrong value", fault.message, fix)
    return error("invalid_value", fault.format_message(), None, fix)


def _unexpected(fault: Exception) -> ColibriError:
    frames = traceback.extract_tb(fault.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    what = f"{type(fault).__name__}: {fault}".strip().rstrip(":")
    why = f"this is a bug in colibri{place}, not something you did"
    fix = f"please report these lines with the command and the output of  colibri --version  ({sys.platform})"
    return error("internal", what, why, fix)
