"""Conversion of a Hugging Face checkpoint to colibri's container.

Owns the options' names and their report. Refuses unknown formats; the core refuses sources it cannot read and
leaves nothing half-written under its final name.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from colibri import engine
from colibri.arguments import COUNT
from colibri.engine import CancelToken, ProgressCallback
from colibri.errors import invalid_value
from colibri.model_folder import checked_path, folder_of


@dataclasses.dataclass(frozen=True, slots=True)
class ConvertReport:
    """What a conversion wrote; or would write, for a dry run.

    Attributes:
        source: the checkpoint's folder; destination: the container's folder.
        dry_run: whether nothing was written.
        summary: the core's report: files with sizes and digests, formats by role, counts.
    """

    source: str
    destination: str
    dry_run: bool
    summary: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The same as a dictionary of JSON values."""
        return dataclasses.asdict(self)


def convert(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    experts: str = "q4g64",
    dense: str = "q4g64",
    embeddings: str = "q8",
    mtp: str = "q8",
    scale_rule: str = "search",
    keep_mtp: bool = True,
    dry_run: bool = False,
    workers: int | None = None,
    on_progress: ProgressCallback | None = None,
    cancel: CancelToken | None = None,
) -> ConvertReport:
    """Converts a checkpoint.

    Args:
        source: a folder with config.json and safetensors.
        destination: the folder to write; it must not hold a model yet.
        experts: format of routed experts: `q4g64`, `q4row`, `q8` or `f32`.
        dense: format of the other matrices; embeddings: of embedding, head and indexer; mtp: of the MTP
            layer.
        scale_rule: `search` (least squared error for each group) or `absmax` (as public containers).
        keep_mtp: whether the MTP layer is kept.
        dry_run: whether to report only.
        workers: threads; None takes the physical cores the process may use.
        on_progress: `f("convert", done, total)` in bytes; returning False stops.
        cancel: a token that stops it.

    Raises:
        ModelNotFound, ModelError: the source is no usable checkpoint.
        StorageError: the destination cannot be written, or the disk is full.
        InvalidValue: an option is not understood.
        Cancelled: it was stopped; the destination holds nothing then.
    """
    options: dict[str, Any] = {
        "experts": experts,
        "dense": dense,
        "embeddings": embeddings,
        "mtp": mtp,
        "scale_rule": scale_rule,
        "keep_mtp": keep_mtp,
        "dry_run": dry_run,
    }
    for name, value in options.items():
        kind, expected = _KINDS.get(name, (str, "a text"))
        if not isinstance(value, kind):
            raise invalid_value(name, value, expected)
    options["workers"] = None if workers is None else COUNT.check("workers", workers)
    folder, target = str(folder_of(source, "source")), str(checked_path(destination, "destination"))
    watcher = engine.watch((cancel,) if cancel is not None else (), None, on_progress)
    summary = engine.convert(folder, target, options, watcher)
    return ConvertReport(folder, target, dry_run, summary)


# Kinds of the options that are no text.
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "keep_mtp": ((bool,), "True or False"),
    "dry_run": ((bool,), "True or False"),
}
