"""``colibri doctor``: checks of machine and model that change nothing, each with what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from colibri.cli import failure
from colibri.cli.console import console
from colibri.cli.interrupt import interrupts
from colibri.cli.models import UNITS, choose_model, load_options, model_folder, named_model
from colibri.cli.options import MODEL_SETTINGS, WORK_OUTPUT, VerbCommand, takes
from colibri.cli.progress import Progress, choose_display
from colibri.cli.words import one_line, plural
from colibri.config import Settings
from colibri.errors import ModelError, ModelNotFound

if TYPE_CHECKING:
    from colibri.results import Check, DoctorReport

# The exit code when a check failed; with --strict also when one warns.
FOUND = 8
# How a status is written, and in which style of the console.
MARKS = {
    "ok": (" ok ", "good"),
    "warn": ("warn", "warning"),
    "fail": ("FAIL", "error"),
    "skip": ("skip", "dim"),
}
# The check that finds no model when there is none.
FILES = "model.files"
# Columns of texts that fixes stand behind; longer texts have theirs after two spaces.
TEXT_COLUMNS = 64


@click.command(name="doctor", cls=VerbCommand)
@click.argument("argument", metavar="[MODEL]", required=False)
@click.option("--deep", is_flag=True, help="Read all weights and compare them with their digests.")
@click.option("--strict", is_flag=True, help="Exit with 8 for warnings too, not for failures alone.")
@takes(*MODEL_SETTINGS, "revision", *WORK_OUTPUT)
def command(settings: Settings, argument: str | None, deep: bool, strict: bool) -> None:
    """Check this machine, and the folder of MODEL. Nothing is changed.

    MODEL is what -m takes; without one it is the configured model, else the machine alone is checked.
    Every line has a name that stays, and one that is not ok says what to do; with -v every fault is listed.
    The exit code is 8 when a check failed.
    """
    report = _checked(settings, argument, deep)
    code = FOUND if report.failures or (strict and report.warnings) else 0
    if settings.flag("json"):
        console().out_object({**report.to_dict(), "deep": deep, "strict": strict, "exit_code": code})
    else:
        show(report.checks)
        console().out_line(summary(report, code))
    if code:
        raise failure.Stop(code)


def _checked(settings: Settings, argument: str | None, deep: bool) -> DoctorReport:
    from colibri.diagnosis import doctor
    from colibri.engine import CancelToken
    from colibri.results import Check, DoctorReport

    folder, found = None, None
    named = named_model(settings, argument)
    if named is not None or settings.text("model") is not None:
        try:
            folder = model_folder(choose_model(settings, named, download=False))
        except (ModelNotFound, ModelError) as fault:
            _, message, why, fix = fault.args
            found = Check(FILES, "fail", f"{message}: {why}" if why else message, fix)
    else:
        found = Check(FILES, "skip", "no model is named", "colibri doctor -m MODEL")
    progress = Progress(choose_display(console(), settings.text("progress") or "auto"))
    cancel = CancelToken()

    def on_progress(phase: str, done: int, total: int) -> None:
        progress.update(phase, done, total, UNITS.get(phase, "byte"))

    with interrupts().work(cancel.cancel):
        try:
            report = doctor(
                folder, deep=deep, on_progress=on_progress, cancel=cancel, **load_options(settings)
            )
        finally:
            progress.finish()
    return report if found is None else DoctorReport(None, (*report.checks, found))


def show(checks: Sequence[Check]) -> None:
    """The checks in columns: status, name, text, and what to do."""
    widest = max((len(check.id) for check in checks), default=0)
    for check in checks:
        mark, style = MARKS[check.status]
        text = one_line(check.text)
        if check.fix:
            text = f"{text:<{TEXT_COLUMNS}}  → {one_line(check.fix)}"
        console().out_marked(mark, style, f"  {check.id:<{widest}}  {text}")
        if console().verbose:
            for detail in check.details:
                console().out_line(f"{'':<{widest + 6}}  {detail}")


def summary(report: DoctorReport, code: int) -> str:
    """The last line."""
    parts = [
        plural(count, noun)
        for count, noun in ((report.failures, "failure"), (report.warnings, "warning"))
        if count
    ]
    return f"{', '.join(parts) or 'no failure, no warning'} · exit {code}"
