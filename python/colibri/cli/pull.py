"""``colibri pull``: a model comes from the Hugging Face hub."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from colibri.cli.console import console
from colibri.cli.interrupt import interrupts
from colibri.cli.options import WORK_OUTPUT, VerbCommand, takes
from colibri.cli.progress import UNITS, Progress, choose_display
from colibri.cli.words import bytes_in_words, plural
from colibri.config import Settings

if TYPE_CHECKING:
    from colibri.download import PullResult


@click.command(name="pull", cls=VerbCommand)
@click.argument("repository", metavar="REPO-ID")
@click.option("--local-dir", metavar="DIR", help="Put the files into this folder, not into the cache.")
@click.option("--include", metavar="GLOB", multiple=True,
              help="Fetch the files that match, and not what a model needs; may be repeated.")  # fmt: skip
@click.option("--exclude", metavar="GLOB", multiple=True, help="Leave these files out; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Show the files and their sizes and fetch nothing.")
@takes("revision", "offline", *WORK_OUTPUT, needs_all=False)
def command(
    settings: Settings,
    repository: str,
    local_dir: str | None,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Download the model REPO-ID (OWNER/NAME, or the address of its page).

    It goes into the Hugging Face cache, where -m OWNER/NAME finds it. Weights in safetensors,
    configuration, tokenizer, templates and licence are fetched. The same command goes on after a stop, and
    says nothing new when all is there.
    """
    settings.need("offline")
    result = fetch(
        settings, repository, local_dir=local_dir, include=include, exclude=exclude, dry_run=dry_run
    )
    for note in result.notes:
        console().warn(note)
    if settings.flag("json"):
        console().out_object(result.to_dict())
        return
    for line in lines(result):
        console().out_line(line)
    if not dry_run:
        name = result.repository if local_dir is None else shlex.quote(local_dir)
        console().info(f"use it:  colibri chat -m {name}", "dim")


def fetch(settings: Settings, repository: str, **wanted: Any) -> PullResult:
    """Downloads with progress; a signal stops it.

    Raises:
        ColibriError: it cannot be had.
    """
    from colibri.download import pull
    from colibri.engine import CancelToken

    progress = Progress(choose_display(console(), settings.text("progress") or "auto"))
    cancel = CancelToken()

    def on_progress(phase: str, done: int, total: int) -> None:
        progress.update(phase, done, total, UNITS[phase])

    with interrupts().work(cancel.cancel):
        try:
            return pull(
                repository,
                revision=settings.text("revision"),
                offline=settings.flag("offline"),
                on_progress=on_progress,
                cancel=cancel,
                **wanted,
            )
        finally:
            progress.finish()


def lines(result: PullResult) -> list[str]:
    """The result for people."""
    shown = []
    if result.dry_run:
        width = max((len(bytes_in_words(size)) for _, size in result.files), default=0)
        shown = [f"{bytes_in_words(size):>{width}}  {name}" for name, size in result.files]
    size = f"{plural(len(result.files), 'file')}, {bytes_in_words(result.bytes)}"
    verb = "to fetch" if result.dry_run else "fetched"
    commit = f" at {result.commit[:12]}" if result.commit else ""
    shown.append(f"{result.repository}{commit}: {size}, {bytes_in_words(result.fetched)} {verb}")
    free = "" if result.free is None or not result.dry_run else f" ({bytes_in_words(result.free)} free)"
    shown.append(f"in {result.folder}{free}")
    return shown
