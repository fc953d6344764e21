"""``colibri inspect``: what a model folder holds, from its headers alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from colibri.cli.console import console
from colibri.cli.models import choose_model, describe_model, format_in_words, model_folder, named_model
from colibri.cli.options import PLAIN_OUTPUT, VerbCommand, takes
from colibri.cli.words import bytes_in_words, count_in_words, parameters_in_words
from colibri.config import Settings


@click.command(name="inspect", cls=VerbCommand)
@click.argument("argument", metavar="[MODEL]", required=False)
@takes("model", "revision", "verbose", *PLAIN_OUTPUT, needs_all=False)
def command(settings: Settings, argument: str | None) -> None:
    """Show what the folder of MODEL holds. With -v every tensor is listed.

    MODEL is what -m takes; without one it is the configured model, or the demo. Only headers are read: this
    takes no longer for a large model.
    """
    from colibri.model import inspect

    choice = choose_model(settings, named_model(settings, argument), download=False)
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
    model, text = summary["model"], summary["text"]
    size = sum(file["bytes"] for file in summary["files"])
    types = ", ".join(
        f"{kind['dtype']} {count_in_words(kind['tensors'])} ({bytes_in_words(kind['bytes'])})"
        for kind in summary["types"]
    )
    there = ", ".join(name for name, found in text.items() if found) or "nothing"
    missing = ", ".join(name for name, found in text.items() if not found)
    found = [
        f"model      {describe_model(model)}",
        f"family     {model['family']}, hidden {count_in_words(model['hidden_size'])}, "
        f"vocabulary {count_in_words(model['vocab_size'])}, "
        f"context up to {count_in_words(model['context_max'])}",
        f"container  {_container(summary['container'])}",
        f"files      {len(summary['files'])}, {bytes_in_words(size)}",
        f"stored     {count_in_words(len(summary['tensors']))} tensors: {types}",
        f"beside     {there}{f' (absent: {missing})' if missing else ''}",
    ]
    if not summary["runs"]:
        found.append(f"runs       no: {model['family']} can be inspected, planned and converted, not run")
    if summary["absent"]:
        them = "it" if len(summary["absent"]) == 1 else "them"
        found.append(f"without    {', '.join(summary['absent'])}: the model runs without {them}")
    if summary["unused"]:
        names = summary["unused"]
        more = f" and {count_in_words(len(names) - 3)} more" if len(names) > 3 else ""
        found.append(f"not used   {', '.join(names[:3])}{more}")
    return [*found, "", *class_lines(summary["classes"])]


def class_lines(classes: Sequence[dict[str, Any]]) -> list[str]:
    """The classes of tensors in columns: name, formats, tensors, weights, size."""
    rows = [("tensors", "format", "count", "weights", "size")]
    rows += [
        (
            str(kind["class"]),
            format_in_words(kind["formats"]),
            count_in_words(kind["tensors"]),
            parameters_in_words(kind["parameters"]),
            bytes_in_words(kind["bytes"]),
        )
        for kind in classes
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return [
        "  ".join(
            f"{cell:<{width}}" if column < 2 else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


# What a kind of container is, for people.
KINDS = {
    "colibri": "colibri",
    "public": "public container: flat codes with .qs scales",
    "huggingface": "Hugging Face checkpoint",
}


def _container(container: dict[str, Any]) -> str:
    parts = [KINDS.get(container["kind"], str(container["kind"]))]
    if container["format_version"] is not None:
        parts[0] += f" {container['format_version']}"
    if container["group_size"] is not None:
        parts.append(f"group size {container['group_size']}")
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
