"""``colibri inspect``: what a model folder holds, from its headers alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from colibri.cli import failure
from colibri.cli.console import console
from colibri.cli.models import choose_model, describe_model, format_in_words, model_folder, named_model
from colibri.cli.options import PLAIN_OUTPUT, VerbCommand, takes
from colibri.cli.words import bytes_in_words, count_in_words
from colibri.config import Settings


@click.command(name="inspect", cls=VerbCommand)
@click.argument("argument", metavar="MODEL", required=False)
@takes("model", "verbose", *PLAIN_OUTPUT, needs_all=False)
def command(settings: Settings, argument: str | None) -> None:
    """Show what the folder of MODEL holds. With -v every tensor is listed.

    MODEL is what -m takes. Only headers are read: this takes no longer for a large model.
    """
    from colibri.model import inspect

    named = named_model(settings, argument)
    if named is None and not settings.given("model"):
        settings.need("model")
        raise failure.usage("MODEL is missing", "no model is configured either", "colibri inspect demo")
    choice = choose_model(settings, named)
    summary = inspect(model_folder(choice))
    if settings.flag("json"):
        console().out_object(summary)
        return
    for line in lines(summary):
        console().out_line(line)
    if console().verbose:
        for line in tensor_lines(summary["tensors"]):
            console().out_line(line, wrap=False)


def lines(summary: dict[str, Any]) -> list[str]:
    """The summary for people."""
    model, container, text = summary["model"], summary["container"], summary["text"]
    formats = ", ".join(f"{role} {format_in_words(names)}" for role, names in model["formats"].items())
    kinds: dict[str, list[int]] = {}
    for tensor in summary["tensors"]:
        kinds.setdefault(kind_of(tensor), []).append(tensor["bytes"])
    types = ", ".join(
        f"{kind} {count_in_words(len(sizes))} ({bytes_in_words(sum(sizes))})"
        for kind, sizes in sorted(kinds.items())
    )
    size = sum(file["bytes"] for file in summary["files"])
    there = ", ".join(name for name, found in text.items() if found) or "nothing"
    absent = ", ".join(name for name, found in text.items() if not found)
    return [
        f"model      {describe_model(model)}",
        f"family     {model['family']}, hidden {model['hidden_size']}, vocabulary {model['vocab_size']}, "
        f"context up to {model['context_max']}",
        f"formats    {formats}",
        f"container  {_container(container)}",
        f"files      {len(summary['files'])}, {bytes_in_words(size)}",
        f"tensors    {count_in_words(len(summary['tensors']))}: {types}",
        f"beside     {there}{f' (absent: {absent})' if absent else ''}",
    ]


def _container(container: dict[str, Any]) -> str:
    if container["kind"] != "colibri":
        return str(container["kind"])
    parts = [f"colibri {container['format_version']}"]
    parts += [
        f"{name.replace('_', ' ')} {container[name]}"
        for name in ("writer", "source", "scale_rule")
        if container[name]
    ]
    return ", ".join(parts)


def kind_of(tensor: dict[str, Any]) -> str:
    """The weight format by the name ``convert`` takes, `scales` that belong to one, or the stored type."""
    if tensor["format"]:
        return str(tensor["format"])
    return "scales" if tensor["name"].endswith(".qs") else str(tensor["dtype"]).lower()


def tensor_lines(tensors: Sequence[dict[str, Any]]) -> list[str]:
    """Every tensor in columns: name, kind, shape, size, file."""
    rows = [
        (
            tensor["name"],
            kind_of(tensor),
            " × ".join(map(str, tensor["shape"])),
            bytes_in_words(tensor["bytes"]),
            tensor["file"],
        )
        for tensor in tensors
    ]
    name, kind, shape, size = (max((len(row[column]) for row in rows), default=0) for column in range(4))
    return [f"{a:<{name}}  {b:<{kind}}  {c:<{shape}}  {d:>{size}}  {e}" for a, b, c, d, e in rows]
