"""``colibri convert``: a Hugging Face checkpoint becomes a colibri container."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from colibri import locate
from colibri.cli import failure
from colibri.cli.console import console
from colibri.cli.interrupt import interrupts
from colibri.cli.models import choose_model, model_folder
from colibri.cli.options import WORK_OUTPUT, VerbCommand, takes
from colibri.cli.progress import UNITS, Progress, choose_display
from colibri.cli.words import bytes_in_words, count_in_words, parameters_in_words, plural, seconds_in_words
from colibri.config import Settings
from colibri.errors import ColibriError, InvalidValue, ModelError, ModelNotFound

if TYPE_CHECKING:
    from colibri.results import ConvertReport

FORMATS = ("q4g64", "q4row", "q3g64", "q8", "f32")
RULES = ("search", "absmax")


def _format(
    flag: str, name: str, default: str, help: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option for the format of a class of tensors."""
    return click.option(flag, name, type=click.Choice(FORMATS), default=default, show_default=True, help=help)


@click.command(name="convert", cls=VerbCommand)
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@_format("--experts", "experts", "q4g64", "Format of the routed experts.")
@_format("--dense", "dense", "q4g64", "Format of attention, dense feed-forward parts and shared experts.")
@_format("--embeddings", "embeddings", "q8", "Format of embedding and head; the indexer is always q8.")
@_format("--mtp-format", "mtp", "q8", "Format of the multi-token-prediction layer.")
@click.option("--no-mtp", is_flag=True, help="Leave the multi-token-prediction layer out.")
@click.option("--scale-rule", type=click.Choice(RULES), default=RULES[0], show_default=True,
              help="How a scale is chosen: least squared error, or the largest weight.")  # fmt: skip
@click.option("--repack", is_flag=True,
              help="Take over the codes of a public container; no format can be chosen then.")  # fmt: skip
@click.option("--workers", type=click.IntRange(1, 4096), metavar="N",
              help="Threads.  [default: physical cores]")  # fmt: skip
@click.option("--verify", is_flag=True, help="Read what was written again and compare its digests.")
@click.option("--delete-source/--keep-source", default=False,
              help="Delete each weight file of SRC as soon as what came of it is safe. Of OWNER/NAME only a "
              "few files lie on the disk at a time then.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show sizes, time and free space, and write nothing.")
@takes("revision", "offline", *WORK_OUTPUT, needs_all=False)
def command(settings: Settings, source: str, destination: str, **options: Any) -> None:
    """Turn the checkpoint SRC into a container in the folder DST.

    SRC is a folder, or OWNER/NAME on the Hugging Face hub, whose files are fetched one ahead of the work.
    Tokenizer, template and generation_config.json travel along. It is built in DST.partial: the same command
    goes on after a stop, and DST appears when it is complete.
    """
    if not destination.strip():
        raise failure.usage("DST is empty", "a container needs a folder", "colibri convert SRC DST")
    if options["repack"]:
        _refuse_formats()
    options["keep_mtp"] = not options.pop("no_mtp")
    report = _convert(settings, _source(settings, source), destination, options)
    if settings.flag("json"):
        console().out_object(report.to_dict())
        return
    for line in lines(report):
        console().out_line(line)
    for note in report.summary["notes"]:
        console().warn(note)
    if not report.dry_run:
        console().info(_next_step(destination), "dim")


def _refuse_formats() -> None:
    """A format that was chosen means nothing where codes are taken over, the default's name included.

    Raises:
        InvalidValue: one was.
    """
    from colibri.conversion import FORMAT_OPTIONS, repack_chooses_nothing

    ctx = click.get_current_context()
    for option in ctx.command.params:
        given = ctx.get_parameter_source(option.name or "") is click.core.ParameterSource.COMMANDLINE
        if option.name in FORMAT_OPTIONS and given:
            raise repack_chooses_nothing(option.opts[0], option.opts[0])


def _next_step(destination: str) -> str:
    """What can be done with the container."""
    from colibri.model import inspect
    from colibri.model_folder import ModelFolder

    place = shlex.quote(destination)
    found = inspect(destination)
    model = found["model"]
    if not found["runs"]:
        return f"look at it:  colibri inspect {place}  ({model['family']} is not run yet)"
    folder = ModelFolder(Path(destination), model["vocab_size"])
    try:
        if folder.tokenizer_or_none() is None:
            return f"look at it:  colibri inspect {place}  (without a tokenizer there is no text)"
        try:
            _ = folder.template
        except ColibriError:
            return f"use it:  colibri generate -m {place} --raw TEXT  (without a template there is no chat)"
    except ColibriError:
        return f"look at it:  colibri doctor {place}"
    return f"use it:  colibri chat -m {place}"


def _source(settings: Settings, source: str) -> str:
    """The folder of the checkpoint, or the repository where it is not one."""
    try:
        choice = choose_model(settings, source, download=False)
    except (InvalidValue, ModelError, ModelNotFound):
        if locate.repository_of(source) is None or Path(source.strip()).is_dir():
            raise
    else:
        if choice.origin != "cache":
            return str(model_folder(choice))
    # Whether the network may be used must be known before it is.
    settings.need("offline")
    return source.strip()


def lines(report: ConvertReport) -> list[str]:
    """The report for people."""
    summary = report.summary
    rows: list[tuple[str, ...]] = [("tensors", "format", "weights", "size", "error")]
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
    if not any(row[-1] for row in rows[1:]):
        # Nothing was encoded.
        rows = [row[:-1] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    result = []
    for row in rows:
        first, numbers = row[:2], row[2:]
        cells = [f"{cell:<{width}}" for cell, width in zip(first, widths, strict=False)]
        cells += [f"{cell:>{width}}" for cell, width in zip(numbers, widths[2:], strict=True)]
        result.append("  ".join(cells).rstrip())
    if summary["unused"]:
        result.append(f"not needed by the model: {plural(len(summary['unused']), 'tensor')}")
    verb = "would write" if report.dry_run else "wrote"
    sizes = f"{bytes_in_words(summary['bytes'])} (the source is {bytes_in_words(summary['source_bytes'])})"
    result.append(f"{verb} {report.destination}: {sizes}")
    if report.dry_run:
        result += _estimate(report)
    return result


def _estimate(report: ConvertReport) -> list[str]:
    """What a dry run says about downloads, space and time."""
    summary, result = report.summary, []
    if report.download is not None:
        missing, held = report.download["missing_bytes"], report.download["held_bytes"]
        result.append(f"download   {bytes_in_words(missing)} to come, {bytes_in_words(held)} held at a time")
    space, time = summary["space"], summary["estimate"]
    if space is not None:
        free = "unknown" if space["free_bytes"] is None else bytes_in_words(space["free_bytes"])
        short = "" if space["suffices"] else ": NOT ENOUGH"
        result.append(f"space      {bytes_in_words(space['needed_bytes'])} needed, {free} free{short}")
    if time is not None:
        low, high = seconds_in_words(time["low_seconds"]), seconds_in_words(time["high_seconds"])
        result.append(f"time       {low if low == high else f'{low} to {high}'}")
        for number, line in enumerate(time["basis"].split("; ")):
            result.append(f"{'basis' if number == 0 else '':<10} {line}")
    result += [f"going on   {done}" for done in _done(report.destination)]
    return result


def _done(destination: str) -> list[str]:
    """What an earlier run has finished, as one line or none."""
    from colibri.build_folder import finished_shards

    count, size = finished_shards(Path(destination))
    return [f"{plural(count, 'shard')} ({bytes_in_words(size)}) done already"] if count else []


def _convert(settings: Settings, source: str, destination: str, options: dict[str, Any]) -> ConvertReport:
    from colibri.conversion import convert
    from colibri.engine import CancelToken

    progress = Progress(choose_display(console(), settings.text("progress") or "auto"))
    cancel = CancelToken()

    before = [] if options["dry_run"] else _done(destination)

    def on_progress(phase: str, done: int, total: int) -> None:
        if phase == "convert":
            # Not before: the options may be other ones.
            while before:
                console().info(f"going on: {before.pop()}", "dim")
        progress.update(phase, done, total, UNITS[phase])

    with interrupts().work(cancel.cancel):
        try:
            return convert(
                source,
                destination,
                revision=settings.text("revision"),
                offline=settings.flag("offline"),
                on_progress=on_progress,
                cancel=cancel,
                **options,
            )
        finally:
            progress.finish()
