"""Conversion of a checkpoint to colibri's container, from a folder or from the hub.

Owns the options' names and the command that stands for a call; the core converts, keeps the journal and
resumes, and `colibri.hub_conversion` lets files of the hub come and go. Refuses options of the wrong kind.
What must hold: the error after a stop names the command that goes on.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from pathlib import Path
from typing import Any, Final

from colibri import engine
from colibri.arguments import COUNT
from colibri.build_folder import JOURNAL_NAME
from colibri.download import Follower
from colibri.engine import CancelToken, ProgressCallback
from colibri.errors import Cancelled, ColibriError, error, invalid_value
from colibri.hub import Hub
from colibri.hub_conversion import FromHub, check_vacant
from colibri.locate import repository_of
from colibri.model_folder import checked_path, folder_of
from colibri.results import ConvertReport


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
    repack: bool = False,
    verify: bool = False,
    delete_source: bool = False,
    revision: str | None = None,
    offline: bool = False,
    dry_run: bool = False,
    workers: int | None = None,
    on_progress: ProgressCallback | None = None,
    cancel: CancelToken | None = None,
) -> ConvertReport:
    """Converts a checkpoint; the same call goes on where an earlier one was stopped.

    Args:
        source: a folder with config.json and safetensors, or `OWNER/NAME` on the hub.
        destination: the folder to write; it must not hold a model yet.
        experts: format of routed experts: `q4g64`, `q4row`, `q3g64`, `q8` or `f32`.
        dense: format of attention, dense feed-forward parts and shared experts.
        embeddings: format of embedding and head. mtp: of the MTP layer. The indexer is always q8.
        scale_rule: `search` (least squared error for each group) or `absmax` (as public containers).
        keep_mtp: whether the MTP layer is kept.
        repack: whether codes and scales are taken over as they are; no format can be chosen then.
        verify: whether what was written is read again and its digests compared.
        delete_source: whether a weight file of the source is deleted once what came of it is safe. Files of
            the hub then lie beside the container, a few at a time, and not in the cache.
        revision: branch, tag or commit of `OWNER/NAME`.
        offline: whether only what is in the cache may be used.
        dry_run: whether to report only.
        workers: threads; None takes the physical cores that the process may use.
        on_progress: `f("convert", done, total)` in bytes; returning False stops.
        cancel: a token that stops it.

    Raises:
        ModelNotFound, ModelError: the source is no usable checkpoint.
        StorageError: the destination cannot be written, or the disk is full.
        DownloadError: the hub cannot be reached, or does not have it.
        InvalidValue: an option is not understood; `convert_parameters_differ` when what was begun was begun
            with other ones.
        Cancelled: it was stopped.
    """
    options: dict[str, Any] = {
        "experts": experts,
        "dense": dense,
        "embeddings": embeddings,
        "mtp": mtp,
        "scale_rule": scale_rule,
        "keep_mtp": keep_mtp,
        "repack": repack,
        "verify": verify,
        "delete_source": delete_source,
    }
    _check({**options, "offline": offline, "dry_run": dry_run})
    if repack:
        _check_repack(options)
    threads = None if workers is None else COUNT.check("workers", workers)
    command = _command(source, destination, {**options, "offline": offline}, revision, threads)
    options["workers"] = threads
    target, follower = checked_path(destination, "destination"), Follower(on_progress, cancel)
    try:
        remote = _remote(source)
        if remote is None:
            return _convert_folder(folder_of(source, "source"), target, options, dry_run, follower)
        repo_id, named = remote
        hub = Hub(repo_id, command, offline=offline, stop=follower.stop)
        return _convert_remote(hub, revision or named, target, options, dry_run, follower)
    except Cancelled as fault:
        kept = "what is finished is kept" if not dry_run else None
        raise error(fault.code, fault.message, fault.why or kept, f"go on:  {command}") from None


_DEFAULTS: Final[dict[str, str | bool]] = {
    "experts": "q4g64",
    "dense": "q4g64",
    "embeddings": "q8",
    "mtp": "q8",
    "scale_rule": "search",
    "keep_mtp": True,
    "repack": False,
    "verify": False,
    "delete_source": False,
    "offline": False,
    "dry_run": False,
}
FORMAT_OPTIONS: Final = ("experts", "dense", "embeddings", "mtp", "scale_rule")
"""Options that choose how weights are encoded, and mean nothing where codes are taken over."""

# Flags whose names are not those of the options.
_FLAGS: Final = {"mtp": "--mtp-format", "keep_mtp": "--no-mtp"}


def _check(options: dict[str, Any]) -> None:
    """Every option must be of the kind of its default.

    Raises:
        InvalidValue: one is not.
    """
    for name, value in options.items():
        kind, expected = (str, "a text") if isinstance(_DEFAULTS[name], str) else (bool, "True or False")
        if not isinstance(value, kind):
            raise invalid_value(name, value, expected)


def _check_repack(options: dict[str, Any]) -> None:
    """What is taken over has its formats already.

    Raises:
        InvalidValue: one was chosen.
    """
    chosen = [name for name in FORMAT_OPTIONS if options[name] != _DEFAULTS[name]]
    if chosen:
        flag = _FLAGS.get(chosen[0], "--" + chosen[0].replace("_", "-"))
        raise repack_chooses_nothing(chosen[0], flag)


def repack_chooses_nothing(name: str, flag: str) -> ColibriError:
    """The error for a format that is chosen together with `repack`."""
    return error(
        "invalid_value",
        f"{name} is given together with repack",
        "repack takes codes and scales over as they are; no format can be chosen",
        f"leave out {flag}, or --repack",
    )


def _command(
    source: object, destination: object, options: dict[str, Any], revision: str | None, workers: int | None
) -> str:
    """The command that does the same."""
    parts = ["colibri", "convert", str(source), str(destination)]
    for name, value in options.items():
        if value != _DEFAULTS[name]:
            parts.append(_FLAGS.get(name, "--" + name.replace("_", "-")))
            if not isinstance(value, bool):
                parts.append(str(value))
    for flag, value in (("--revision", revision), ("--workers", workers)):
        if value is not None:
            parts += [flag, str(value)]
    return shlex.join(parts)


def _remote(source: object) -> tuple[str, str | None] | None:
    """The repository that a source means, when it is no folder here."""
    if not isinstance(source, str) or not source or os.path.exists(source):
        return None
    return repository_of(source)


def _convert_folder(
    folder: Path, target: Path, options: dict[str, Any], dry_run: bool, follower: Follower
) -> ConvertReport:
    if dry_run:
        summary = engine.convert_dry_run(str(folder), str(target), options)
        summary.pop("schedule", None)
    else:
        if not (target / JOURNAL_NAME).is_file():
            check_vacant(target)
        summary = engine.convert(str(folder), str(target), options, follower.watcher())
    return ConvertReport(str(folder), str(target), dry_run, summary)


def _convert_remote(
    hub: Hub,
    revision: str | None,
    target: Path,
    options: dict[str, Any],
    dry_run: bool,
    follower: Follower,
) -> ConvertReport:
    run = FromHub(hub, revision, target, options, follower)
    if not hub.offline:
        return run.dry_run() if dry_run else run.run()
    found = run.cached()
    options = {**options, "source_name": f"{hub.repo_id}@{found.name}"}
    report = _convert_folder(found, target, options, dry_run, follower)
    return dataclasses.replace(report, source=hub.repo_id)
