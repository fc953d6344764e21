"""Conversion of a repository on the hub: in which order its files come, and go.

Owns the folder of what was fetched, the headers that come ahead of their files, and the schedule; the core
plans and converts, `colibri.download` brings the files. Refuses a source that has changed under a conversion
in progress. What must hold: only the weight files of the present step and of the next one are fetched ahead,
and a conversion goes on with the commit with which it began.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shlex
import shutil
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from colibri import engine
from colibri.build_folder import JOURNAL_NAME, SOURCE_NAME, build_folder
from colibri.config import Environment
from colibri.download import (
    GRACE_SECONDS,
    JOBS,
    Choice,
    Download,
    Follower,
    in_thread,
    place_for,
    require_space,
)
from colibri.errors import InvalidValue, ModelError, ModelNotFound, error
from colibri.hub import INDEX_NAME, MANIFEST_NAME, Hub
from colibri.hub_files import RemoteFile, Repository
from colibri.hub_places import (
    FolderPlace,
    Place,
    cached_snapshot,
    free_space,
    missing_bytes,
    read_record,
    write_record,
)
from colibri.results import ConvertReport

HEADER: Final = ".header"
"""Ends the name of a file with the header of a weight file that has not come yet; the core plans with it."""

_WEIGHTS: Final = ".safetensors"
# What was done before space is looked at.
_SO_FAR: Final = "this run fetched no weights"
# The longest header of a weight file that is read ahead, in bytes.
_HEADER_LIMIT: Final = 100_000_000


class FromHub:
    """A conversion whose source is on the hub."""

    def __init__(
        self,
        hub: Hub,
        revision: str | None,
        target: Path,
        options: dict[str, Any],
        follower: Follower,
    ) -> None:
        self._hub, self._revision, self._target = hub, revision, target
        self._options, self._follower = options, follower
        self._building = build_folder(target)
        self._staging = self._building / SOURCE_NAME

    def cached(self) -> Path:
        """The folder of the cache that holds it, for work without a network.

        Raises:
            DownloadError: it is not there.
        """
        cache = Environment().hugging_face_cache
        found = cached_snapshot(cache, self._hub.repo_id, self._revision)
        if found is None:
            raise self._hub.failed(
                f"{self._hub.repo_id} is not on this computer",
                f"it is not in {cache}, and the network may not be used (--offline or HF_HUB_OFFLINE)",
                f"without that:  {self._hub.command}",
            )
        return found

    def dry_run(self) -> ConvertReport:
        """Fetches the small files into a temporary folder and plans with them."""
        repository = self._repository()
        files = Choice().of(repository)
        weights = [file for file in files if file.name.endswith(_WEIGHTS)]
        place = place_for(repository, self._staging if self._options["delete_source"] else None)
        with tempfile.TemporaryDirectory(prefix="colibri-") as folder:
            self._fetch(repository, FolderPlace(Path(folder), repository), _small(files))
            if self._needs_headers(repository):
                self._fetch_headers(repository, weights, Path(folder))
            options = {**self._options, "source_name": self._name(repository)}
            summary = engine.convert_dry_run(folder, str(self._target), options)
        steps = summary.pop("schedule", [])
        schedule = _Schedule(steps, {file.name: file for file in weights}, place)
        held = schedule.held if self._options["delete_source"] else schedule.missing
        self._add_space(summary, place, held, sum(step.bytes for step in steps if not step.done))
        return self._report(repository, weights, schedule.missing, held, summary, dry_run=True)

    def _add_space(self, summary: dict[str, Any], place: Place, held: int, output: int) -> None:
        """Has the space of a dry run be what a run looks for, with the source files held at a time."""
        space = summary["space"]
        _, there = free_space(self._building)
        free, beside = free_space(place.folder)
        if there.stat().st_dev == beside.stat().st_dev:
            output += held
            held = 0
        space["needed_bytes"] = output
        space["suffices"] = held <= free and (space["free_bytes"] is None or output <= space["free_bytes"])

    def _needs_headers(self, repository: Repository) -> bool:
        """Whether the small files do not say what is in which file, and in which format it is taken over."""
        begun = (self._building / JOURNAL_NAME).is_file()
        return not begun and (repository.find(INDEX_NAME) is None or bool(self._options["repack"]))

    def _fetch_headers(self, repository: Repository, files: Sequence[RemoteFile], folder: Path) -> None:
        """Fetches the headers of weight files that are not in the folder."""
        files = [file for file in files if not (folder / file.name).is_file()]
        parts = [part for part in (files[start::JOBS] for start in range(JOBS)) if part]
        heads = [in_thread(functools.partial(self._heads, repository, part, folder)) for part in parts]
        try:
            for future in heads:
                self._follower.wait(future, lambda: None, self._hub.cancelled)
        except BaseException:
            self._follower.stop.set()
            for future in heads:
                _settle(future)
            raise

    def _heads(self, repository: Repository, files: Sequence[RemoteFile], folder: Path) -> None:
        for file in files:
            content = self._hub.head(repository, file, 8)
            length = int.from_bytes(content, "little")
            # The core refuses a header of another length.
            if 0 < length <= min(_HEADER_LIMIT, file.size - 8):
                content = self._hub.head(repository, file, 8 + length)
            path = folder / (file.name + HEADER)
            try:
                path.write_bytes(content)
            except OSError as fault:
                raise self._hub.not_written(fault, path) from None

    def run(self) -> ConvertReport:
        """Fetches and converts, a step at a time."""
        if (self._target / JOURNAL_NAME).is_file() or (self._building / MANIFEST_NAME).is_file():
            # All is written: only the last acts are left, for which no source is needed.
            return self._complete()
        check_vacant(self._target)
        fresh = not self._building.exists()
        repository = self._repository()
        files = Choice().of(repository)
        weights = {file.name: file for file in files if file.name.endswith(_WEIGHTS)}
        place = place_for(repository, self._staging if self._options["delete_source"] else None)
        self._fetch(repository, place, _small(files))
        if read_record(self._staging) is None:
            self._staging.mkdir(parents=True, exist_ok=True)
            write_record(self._staging, repository, {})
        conversion = self._open(repository, place, list(weights.values()), fresh)
        steps = conversion.steps()
        schedule = _Schedule(steps, weights, place)
        held = schedule.held if self._options["delete_source"] else schedule.missing
        self._check_space(place, held, sum(step.bytes for step in steps if not step.done))
        self._run_steps(conversion, schedule, repository, place)
        if all(place.has(file) for file in files):
            with contextlib.suppress(OSError):
                place.finish()
        summary = conversion.finish(self._follower.watcher())
        shards = list(weights.values())
        return self._report(repository, shards, schedule.missing, held, summary, dry_run=False)

    def _open(
        self, repository: Repository, place: Place, weights: Sequence[RemoteFile], fresh: bool
    ) -> engine.Conversion:
        """Plans the conversion from the small files, and from headers where these do not say enough."""
        options = {**self._options, "source_name": self._name(repository)}
        try:
            if self._needs_headers(repository):
                self._fetch_headers(repository, weights, place.folder)
            return engine.Conversion(str(place.folder), str(self._target), options)
        except (InvalidValue, ModelError, ModelNotFound):
            # Nothing was begun: this source will never be one.
            if fresh and not (self._building / JOURNAL_NAME).exists():
                shutil.rmtree(self._building, ignore_errors=True)
            raise
        finally:
            # The core has written down what it needs of them.
            for file in weights:
                with contextlib.suppress(OSError):
                    (place.folder / (file.name + HEADER)).unlink(missing_ok=True)

    def _complete(self) -> ConvertReport:
        conversion = engine.Conversion(str(self._staging), str(self._target), self._options)
        summary = conversion.finish(self._follower.watcher())
        return ConvertReport(self._hub.repo_id, str(self._target), False, summary)

    def _run_steps(
        self, conversion: engine.Conversion, schedule: _Schedule, repository: Repository, place: Place
    ) -> None:
        def begin(index: int) -> Future[None]:
            download = Download(self._hub, repository, place, schedule.files(index))
            schedule.downloads.append(download)
            return download.start()

        ahead: Future[None] | None = None
        try:
            for position, index in enumerate(schedule.todo):
                if ahead is None:
                    ahead = begin(index)
                self._follower.wait(
                    ahead, lambda: self._follower.report(*schedule.progress()), self._hub.cancelled
                )
                following = schedule.todo[position + 1 : position + 2]
                ahead = begin(following[0]) if following else None
                self._run_step(conversion, schedule, index)
        finally:
            if ahead is not None and not ahead.done():
                self._follower.stop.set()
                _settle(ahead)

    def _run_step(self, conversion: engine.Conversion, schedule: _Schedule, index: int) -> None:
        def on_progress(phase: str, done: int, total: int) -> object:
            if phase != "convert":
                return self._follower.tell(phase, done, total)
            # Of the whole run, what earlier runs did included.
            schedule.converted = done / total if total else 1.0
            return self._follower.tell(*schedule.progress())

        conversion.run_step(index, self._follower.watcher(on_progress))

    def _repository(self) -> Repository:
        """The files of the hub: at the commit with which the conversion began, if it has begun."""
        record = read_record(self._staging)
        pinned = record.get("commit") if record is not None else None
        same = record is not None and record.get("repository") == self._hub.repo_id
        asked = self._revision
        if same and isinstance(pinned, str) and asked in (None, record.get("revision") if record else None):
            asked = pinned
        listing = in_thread(lambda: self._hub.repository(asked))
        repository = self._follower.wait(listing, lambda: None, self._hub.cancelled)
        if record is not None and (not same or pinned != repository.commit):
            raise error(
                "convert_parameters_differ",
                f"{self._building} was begun from another source",
                f"from {record.get('repository')}@{pinned}; now it is {self._name(repository)}",
                f"give the same source, or remove {self._building}",
            )
        if asked == pinned and self._revision is not None:
            return dataclasses.replace(repository, revision=self._revision)
        return repository

    def _name(self, repository: Repository) -> str:
        return f"{repository.repo_id}@{repository.commit}"

    def _fetch(self, repository: Repository, place: Place, files: Sequence[RemoteFile]) -> None:
        download = Download(self._hub, repository, place, files)
        self._follower.wait(
            download.start(),
            lambda: self._follower.report("download", download.done, download.total),
            self._hub.cancelled,
        )

    def _check_space(self, place: Place, held: int, output: int) -> None:
        """Container and source files must fit, together where they share a disk.

        Raises:
            StorageError: they do not.
        """
        _, there = free_space(self._building)
        _, beside = free_space(place.folder)
        if there.stat().st_dev == beside.stat().st_dev:
            what = "what is left of the container and the source files held at a time"
            require_space(self._hub, self._building, output + held, what, _SO_FAR)
        else:
            require_space(self._hub, self._building, output, "what is left of the container", _SO_FAR)
            require_space(self._hub, place.folder, held, "the source files that are not here yet", _SO_FAR)

    def _report(
        self,
        repository: Repository,
        weights: Sequence[RemoteFile],
        missing: int,
        held: int,
        summary: dict[str, Any],
        *,
        dry_run: bool,
    ) -> ConvertReport:
        download = {
            "commit": repository.commit,
            "bytes": sum(file.size for file in weights),
            "missing_bytes": missing,
            "held_bytes": held,
        }
        return ConvertReport(self._hub.repo_id, str(self._target), dry_run, summary, download)


class _Schedule:
    """Which files come when, and how far all of it is.

    Attributes:
        todo: indices of the steps that are still to do.
        missing: bytes of weights that have still to come.
        held: the most bytes of weights that lie here at a time.
        downloads: those that were begun.
        converted: how much of the container is written, from 0 to 1.
    """

    def __init__(self, steps: Sequence[engine.Step], weights: dict[str, RemoteFile], place: Place) -> None:
        self._steps, self._weights = steps, weights
        self.todo = [index for index, step in enumerate(steps) if not step.done]
        needed = {name for index in self.todo for name in steps[index].files}
        self.missing = sum(missing_bytes(place, weights[name]) for name in needed if name in weights)
        self.held = self._held()
        self.downloads: list[Download] = []
        self._total = sum(file.size for file in weights.values())
        output = sum(step.bytes for step in steps)
        self.converted = sum(step.bytes for step in steps if step.done) / output if output else 1.0

    def files(self, index: int) -> list[RemoteFile]:
        """The files of a step."""
        return [self._weights[name] for name in self._steps[index].files if name in self._weights]

    def _held(self) -> int:
        most, here = 0, set[str]()
        for position, index in enumerate(self.todo):
            for ahead in self.todo[position : position + 2]:
                here.update(self._steps[ahead].files)
            most = max(most, sum(self._weights[name].size for name in here if name in self._weights))
            here.difference_update(self._steps[index].releases)
        return most

    def progress(self) -> tuple[str, int, int]:
        """Phase, done and total of the whole run.

        In bytes of the source: half of each for its coming, half for its conversion.
        """
        share = self.converted
        if self.missing:
            came = sum(download.fetched for download in self.downloads)
            share = (share + min(came / self.missing, 1.0)) / 2
        return "convert", int(min(share, 1.0) * self._total), self._total


def _small(files: Sequence[RemoteFile]) -> list[RemoteFile]:
    return [file for file in files if not file.name.endswith(_WEIGHTS)]


def check_vacant(target: Path) -> None:
    """The destination must hold nothing.

    Raises:
        StorageError: it does.
    """
    try:
        full = next(target.iterdir(), None) is not None
    except FileNotFoundError:
        full = False
    except OSError:
        full = True
    if full and (target / MANIFEST_NAME).is_file():
        place = shlex.quote(str(target))
        raise error(
            "output_not_writable",
            f"{target} is complete: it holds a container",
            "a finished container is not written again",
            f"check it:  colibri doctor --deep {place}, or choose another destination, or remove {place}",
        )
    if full:
        raise error(
            "output_not_writable",
            f"{target} is not empty",
            "nothing that is there is written over",
            "choose another destination, or empty this one",
        )


def _settle(future: Future[None]) -> None:
    """Lets a transfer that was asked to stop do so."""
    limit = time.monotonic() + GRACE_SECONDS
    while not future.done() and time.monotonic() < limit:
        time.sleep(engine.POLL_SECONDS)
