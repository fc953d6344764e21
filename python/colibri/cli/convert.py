"""``colibri convert``: a Hugging Face checkpoint becomes a colibri container."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from colibri.cli import failure
from colibri.cli.console import console
from colibri.cli.interrupt import interrupts
from colibri.cli.models import UNITS, choose_model, model_folder
from colibri.cli.options import WORK_OUTPUT, VerbCommand, takes
from colibri.cli.progress import Progress, choose_display
from colibri.cli.words import bytes_in_words, count_in_words, parameters_in_words
from colibri.config import Settings

if TYPE_CHECKING:
    from colibri.conversion import ConvertReport

FORMATS = ("q4g64", "q4row", "q8", "f32")
RULES = ("search", "absmax")


@click.command(name="convert", cls=VerbCommand)
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@click.option(
    "--experts",
    type=click.Choice(FORMATS),
    default=FORMATS[0],
    show_default=True,
    help="Format of the experts.",
)
@click.option(
    "--dense",
    type=click.Choice(FORMATS),
    default=FORMATS[0],
    show_default=True,
    help="Format of the other matrices.",
)
@click.option("--scale-rule", type=click.Choice(RULES), default=RULES[0], show_default=True,
              help="How a scale is chosen: least squared error, or the largest weight.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show the sizes and write nothing.")
@takes(*WORK_OUTPUT, needs_all=False)
def command(
    settings: Settings,
    source: str,
    destination: str,
    experts: str,
    dense: str,
    scale_rule: str,
    dry_run: bool,
) -> None:
    """Turn the checkpoint SRC into a container in the folder DST.

    SRC is a folder, or OWNER/NAME in the Hugging Face cache. Embedding, head, indexer and MTP layer
    become q8; tokenizer, template and generation_config.json travel along. DST appears only when it is
    complete.
    """
    if not destination.strip():
        raise failure.usage("DST is empty", "a container needs a folder", "colibri convert SRC DST")
    folder = model_folder(choose_model(settings, source))
    report = _convert(settings, str(folder), destination, experts, dense, scale_rule, dry_run)
    if settings.flag("json"):
        console().out_object(report.to_dict())
        return
    for line in lines(report):
        console().out_line(line)
    if not dry_run:
        console().info(f"use it:  colibri chat -m {shlex.quote(destination)}", "dim")


def lines(report: ConvertReport) -> list[str]:
    """The report for people."""
    summary = report.summary
    rows = [("tensors", "format", "weights", "size", "error")]
    for kind in summary["classes"]:
        error = kind["relative_error"]
        rows.append(
            (
                f"{kind['class']} ({count_in_words(kind['tensors'])})",
                kind["format"],
                parameters_in_words(kind["parameters"]),
                bytes_in_words(kind["bytes"]),
                "" if error is None else f"{100 * error:.2f} %",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    result = []
    for row in rows:
        first, numbers = row[:2], row[2:]
        cells = [f"{cell:<{width}}" for cell, width in zip(first, widths, strict=False)]
        cells += [f"{cell:>{width}}" for cell, width in zip(numbers, widths[2:], strict=True)]
        result.append("  ".join(cells).rstrip())
    if summary["unused"]:
        result.append(f"not needed by the model: {count_in_words(len(summary['unused']))} tensors")
    verb = "would write" if report.dry_run else "wrote"
    sizes = (
        f"{bytes_in_words(summary['bytes'])} (the checkpoint is {bytes_in_words(summary['source_bytes'])})"
    )
    result.append(f"{verb} {report.destination}: {sizes}")
    return result


def _convert(
    settings: Settings,
    source: str,
    destination: str,
    experts: str,
    dense: str,
    scale_rule: str,
    dry_run: bool,
) -> ConvertReport:
    from colibri.conversion import convert
    from colibri.engine import CancelToken

    progress = Progress(choose_display(console(), settings.text("progress") or "auto"))
    cancel = CancelToken()

    def on_progress(phase: str, done: int, total: int) -> None:
        progress.update(phase, done, total, UNITS[phase])

    with interrupts().work(cancel.cancel):
        try:
            return convert(
                source,
                destination,
                experts=experts,
                dense=dense,
                scale_rule=scale_rule,
                dry_run=dry_run,
                on_progress=on_progress,
                cancel=cancel,
            )
        finally:
            progress.finish()
