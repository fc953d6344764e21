"""Downloading a model: choosing its files, the space for them, fetching, and the check that all is there.

Owns the choice of files, the order of the work and its progress; `colibri.hub` moves the bytes and
`colibri.hub_places` knows where they go. Refuses to begin where the disk is too small. What must hold: after
a success the model's headers have been read by the same code that loads it; after a failure or a stop
the same command goes on where this one ended.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, TypeVar

from colibri import engine, hub_places, locate
from colibri.config import Environment
from colibri.engine import CancelToken, ProgressCallback
from colibri.errors import ColibriError, error, invalid_value
from colibri.hub import MAIN, Hub
from colibri.hub_files import RemoteFile, Repository
from colibri.hub_places import CachePlace, FolderPlace, Place, cached_snapshot, free_space, missing_bytes
from colibri.model_folder import checked_path
from colibri.quantities import bytes_in_words, plural

NEEDED: Final = (
    *("*.safetensors", "*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt"),
    *("LICENSE*", "LICENCE*", "NOTICE*", "README.md"),
)
"""What a model needs, at the top of its repository."""

NOT_NEEDED: Final = ("consolidated*.safetensors",)
"""The same weights a second time, for other programs."""

JOBS: Final = 4
"""Files that are fetched at a time."""

GRACE_SECONDS: Final = 1.5
"""How long a request to stop waits for a transfer to see it; the server may be silent for longer."""

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class PullResult:
    """What a download brought; or would bring, for a dry run.

    Attributes:
        repository: `OWNER/NAME`; revision: what was asked for; commit: what that was then.
        folder: where the files are; dry_run: whether nothing was fetched.
        files: names and bytes of the chosen files.
        bytes: their sum; fetched: what had to come through the network; free: free space, None when offline.
        notes: what to know about it.
    """

    repository: str
    revision: str
    commit: str
    folder: str
    dry_run: bool
    files: tuple[tuple[str, int], ...]
    bytes: int
    fetched: int
    free: int | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same as a dictionary of JSON values."""
        value = dataclasses.asdict(self)
        for name in ("fetched", "free"):
            value[f"{name}_bytes"] = value.pop(name)
        files = [{"file": name, "bytes": size} for name, size in self.files]
        return {**value, "files": files, "notes": list(self.notes)}


def pull(
    repository: str,
    *,
    revision: str | None = None,
    local_dir: str | os.PathLike[str] | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    offline: bool = False,
    dry_run: bool = False,
    on_progress: ProgressCallback | None = None,
    cancel: CancelToken | None = None,
) -> PullResult:
    """Downloads a model into the Hugging Face cache, or into a folder.

    Args:
        repository: `OWNER/NAME`, or the address of its page.
        revision: a branch, a tag or a commit; None is the main branch.
        local_dir: a folder for the files; None takes the cache, where `OWNER/NAME` finds them.
        include: patterns such as `*.json` of the files wanted; none takes what a model needs.
        exclude: patterns of files left out.
        offline: whether only what is here already may be used.
        dry_run: whether to report only.
        on_progress: `f("download", done, total)` in bytes; returning False stops.
        cancel: a token that stops it.

    Raises:
        DownloadError: the hub cannot be reached, or does not have it.
        StorageError: the disk is full, or would be, or cannot be written.
        ModelError: all was fetched and it is no whole model.
        InvalidValue: an argument is not understood.
        Cancelled: it was stopped; what has come is kept.
    """
    repo_id, named = repository_of(repository)
    revision = named if revision is None else revision
    chosen = Choice(_patterns("include", include), _patterns("exclude", exclude))
    folder = None if local_dir is None else checked_path(local_dir, "local_dir")
    command = _command(repo_id, revision, folder, chosen)
    follower = Follower(on_progress, cancel)
    hub = Hub(repo_id, command, offline=offline, stop=follower.stop)
    if hub.offline:
        return _here(hub, revision, folder)
    return _pull(hub, revision, folder, chosen, follower, dry_run)


def repository_of(text: str) -> tuple[str, str | None]:
    """The repository that a text means, and the revision where it is an address that has one.

    Raises:
        InvalidValue: it means none.
    """
    found = locate.repository_of(text) if isinstance(text, str) else None
    if found is None:
        raise error(
            "invalid_value",
            f"{text!r} names no repository",
            "OWNER/NAME as on Hugging Face, or the address of its page, is wanted",
            "write it as OWNER/NAME",
        )
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """Which files are wanted."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def of(self, repository: Repository) -> tuple[RemoteFile, ...]:
        """The chosen files, small ones first."""
        files = [file for file in repository.files if self._takes(file.name)]
        return tuple(sorted(files, key=lambda file: (file.name.endswith(".safetensors"), file.name)))

    def _takes(self, name: str) -> bool:
        if any(fnmatchcase(name, pattern) for pattern in self.exclude):
            return False
        if self.include:
            return any(fnmatchcase(name, pattern) for pattern in self.include)
        if "/" in name or any(fnmatchcase(name, pattern) for pattern in NOT_NEEDED):
            return False
        return any(fnmatchcase(name, pattern) for pattern in NEEDED)


class Follower:
    """Keeps the caller in touch with work that runs in other threads.

    The work's threads only count; progress is reported, and requests to stop are seen, in the caller's.
    """

    def __init__(self, on_progress: ProgressCallback | None, cancel: CancelToken | None) -> None:
        self._on_progress, self._cancel = on_progress, cancel
        # Checks both.
        self.watcher()
        self.stop = threading.Event()

    def watcher(self, on_progress: ProgressCallback | None = None) -> engine.Watcher:
        """What the core asks whether to go on. `on_progress` is told instead of the caller, where given."""
        cancel = () if self._cancel is None else (self._cancel,)
        return engine.watch(cancel, None, on_progress or self._on_progress)

    def tell(self, phase: str, done: int, total: int) -> object:
        """Passes progress on; False asks to stop."""
        return None if self._on_progress is None else self._on_progress(phase, done, total)

    def report(self, phase: str, done: int, total: int) -> None:
        """Passes progress on; a request to stop is kept in `stop`."""
        if self.tell(phase, done, total) is False:
            self.stop.set()

    def wait(self, future: Future[T], tick: Callable[[], None], stopped: Callable[[], ColibriError]) -> T:
        """Waits for work, reporting with `tick`; after a request to stop not for long.

        Raises:
            Cancelled: made by `stopped`, when the work does not see the request in time.
        """
        patience: float | None = None
        ready = threading.Event()
        future.add_done_callback(lambda _: ready.set())
        try:
            while not ready.wait(engine.POLL_SECONDS):
                tick()
                if self._asked_to_stop():
                    patience = patience or time.monotonic() + GRACE_SECONDS
                    if time.monotonic() > patience:
                        raise stopped()
        except BaseException:
            self.stop.set()
            raise
        result = future.result()
        tick()
        # Also a request that came as the work ended: whoever made it counts on it.
        if self._asked_to_stop():
            raise stopped()
        return result

    def _asked_to_stop(self) -> bool:
        if self._cancel is not None and self._cancel.cancelled:
            self.stop.set()
        return self.stop.is_set()


class Download:
    """Files on their way to a place, some at a time.

    Attributes:
        done: bytes that have come, with what an earlier run left.
        total: bytes of the files that were not here.
        fetched: bytes that came through the network.
    """

    def __init__(self, hub: Hub, repository: Repository, place: Place, files: Iterable[RemoteFile]) -> None:
        self._hub, self._repository, self._place = hub, repository, place
        self._waiting = list(files)
        self._lock = threading.Lock()
        self._failed = False
        absent = [file for file in self._waiting if not place.has(file)]
        self.total = sum(file.size for file in absent)
        self.done = self.total - sum(missing_bytes(place, file) for file in absent)
        self.fetched = 0

    def start(self, jobs: int = JOBS) -> Future[None]:
        """Begins; the future ends with the first failure, or when all files are there."""
        future: Future[None] = Future()

        def run() -> None:
            threads = [_thread(lambda: self._work(future)) for _ in range(min(jobs, len(self._waiting)))]
            for thread in threads:
                thread.join()
            if not self._failed:
                future.set_result(None)

        _thread(run)
        return future

    def _work(self, future: Future[None]) -> None:
        try:
            while True:
                with self._lock:
                    if self._failed or not self._waiting:
                        return
                    file = self._waiting.pop(0)
                self._bring(file)
        except BaseException as fault:
            with self._lock:
                first, self._failed = not self._failed, True
            if first:
                # The others are asked to stop, and what they say then is no news.
                future.set_exception(fault)
                self._hub.stop.set()

    def _bring(self, file: RemoteFile) -> None:
        counted = not self._place.has(file)
        self._hub.check_stop()
        partial = self._place.partial(file)
        try:
            if self._place.adopt(file, self._hub.stop):
                return
            self._hub.check_stop()
            partial.parent.mkdir(parents=True, exist_ok=True)
        except OSError as fault:
            raise self._hub.not_written(fault, partial) from None
        if not counted:
            with self._lock:
                self.total += file.size
        self._hub.fetch(self._repository, file, partial, self._came)
        try:
            self._place.accept(file)
        except OSError as fault:
            raise self._hub.not_written(fault, partial) from None

    def _came(self, count: int) -> None:
        with self._lock:
            self.done += count
            self.fetched += max(count, 0)


def _thread(work: Callable[[], None]) -> threading.Thread:
    # A thread that waits for a silent server must not keep the process from ending.
    thread = threading.Thread(target=work, name="colibri-hub", daemon=True)
    thread.start()
    return thread


def in_thread(work: Callable[[], T]) -> Future[T]:
    """Runs one piece of work beside the caller."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as fault:
            future.set_exception(fault)

    _thread(run)
    return future


def _pull(
    hub: Hub, revision: str | None, folder: Path | None, choice: Choice, follower: Follower, dry_run: bool
) -> PullResult:
    listing = in_thread(lambda: hub.repository(revision))
    repository = follower.wait(listing, lambda: None, hub.cancelled)
    files = choice.of(repository)
    if not files:
        patterns = ", ".join(choice.include or NEEDED)
        raise error(
            "invalid_value",
            f"{hub.repo_id} has no file that is wanted",
            f"none of its {len(repository.files)} files matches {patterns}",
            "give other patterns with --include",
        )
    place = place_for(repository, folder)
    missing = sum(missing_bytes(place, file) for file in files)
    free = require_space(hub, place.folder, missing, "the files that are not here yet")
    fetched = missing
    if not dry_run:
        download = Download(hub, repository, place, files)
        future = download.start()
        follower.wait(
            future, lambda: follower.report("download", download.done, download.total), hub.cancelled
        )
        fetched = download.fetched
    notes = [] if dry_run else _checked(hub, repository, place, files)
    if not dry_run:
        try:
            place.finish()
        except OSError as fault:
            raise hub.not_written(fault, place.folder) from None
    return PullResult(
        repository=hub.repo_id,
        revision=repository.revision,
        commit=repository.commit,
        folder=str(place.folder),
        dry_run=dry_run,
        files=tuple((file.name, file.size) for file in files),
        bytes=sum(file.size for file in files),
        fetched=fetched,
        free=free,
        notes=tuple(notes),
    )


def place_for(repository: Repository, folder: Path | None) -> Place:
    """The folder, or the cache where there is none."""
    if folder is not None:
        return FolderPlace(folder, repository)
    return CachePlace(Environment().hugging_face_cache, repository)


def require_space(hub: Hub, folder: Path, needed: int, what: str, so_far: str = "nothing was fetched") -> int:
    """The free bytes where `folder` is or will be; `so_far` says what was done before.

    Raises:
        StorageError: they are fewer than needed.
    """
    free, there = free_space(folder)
    if needed > free:
        raise error(
            "disk_full",
            f"{what} need {bytes_in_words(needed)}, and {bytes_in_words(free)} are free",
            f"on the disk of {there}; {so_far}",
            f"free {bytes_in_words(needed - free)}, or use another disk, then:  {hub.command}",
        )
    return free


def _checked(hub: Hub, repository: Repository, place: Place, files: Sequence[RemoteFile]) -> list[str]:
    """Notes about a download that is whole.

    Raises:
        ModelError: it is not, or is no whole model.
    """
    absent = [file for file in files if not place.has(file)]
    if absent:
        raise error(
            "model_incomplete",
            f"{len(absent)} of {len(files)} files of {hub.repo_id} are missing",
            f"{absent[0].name} is not in {place.folder}",
            f"fetch them:  {hub.command}",
        )
    names = {file.name for file in files}
    left_out = [file.name for file in Choice().of(repository) if file.name not in names]
    if left_out:
        count = plural(len(left_out), "file")
        return [f"{count} needed by the model left out, such as {left_out[-1]}"]
    return check_headers(hub, place.folder)


def check_headers(hub: Hub, folder: Path) -> list[str]:
    """Reads the headers of a model as loading does; notes for a model that cannot be run.

    Raises:
        ModelError: it is incomplete or corrupt. ModelNotFound: it is none.
    """
    try:
        engine.inspect(str(folder))
    except ColibriError as fault:
        if fault.code == "model_unsupported":
            return [f"this model cannot be run: {fault.message}"]
        fix = f"fetch what is missing:  {hub.command}" if fault.code == "model_incomplete" else fault.fix
        raise error(fault.code, fault.message, fault.why, fix) from None
    return []


def _here(hub: Hub, revision: str | None, folder: Path | None) -> PullResult:
    """What is here of a model, when the hub may not be asked.

    Raises:
        DownloadError: nothing is. ModelError: it is not whole.
    """
    if folder is None:
        cache = Environment().hugging_face_cache
        found = cached_snapshot(cache, hub.repo_id, revision)
        commit = found.name if found is not None else ""
        where = str(cache)
    else:
        record = hub_places.read_record(folder)
        found = folder if record is not None and record.get("repository") == hub.repo_id else None
        commit = str(record.get("commit", "")) if record is not None else ""
        where = str(folder)
    if found is None:
        raise hub.failed(
            f"{hub.repo_id} is not on this computer",
            f"it is not in {where}, and the network may not be used (--offline or HF_HUB_OFFLINE)",
            f"with a network:  {hub.command}",
        )
    notes = check_headers(hub, found)
    entries = sorted(path for path in found.rglob("*") if _is_model_file(path))
    files = tuple((path.relative_to(found).as_posix(), path.stat().st_size) for path in entries)
    return PullResult(
        repository=hub.repo_id,
        revision=revision or MAIN,
        commit=commit,
        folder=str(found),
        dry_run=False,
        files=files,
        bytes=sum(size for _, size in files),
        fetched=0,
        free=None,
        notes=tuple(notes),
    )


def _is_model_file(path: Path) -> bool:
    own = path.name == hub_places.RECORD_NAME or path.name.endswith(hub_places.PARTIAL)
    return path.is_file() and not own


def _patterns(name: str, value: Sequence[str]) -> tuple[str, ...]:
    if isinstance(value, str) or not all(isinstance(item, str) and item for item in value):
        raise invalid_value(name, value, "a list of patterns such as '*.json'")
    return tuple(value)


def _command(repo_id: str, revision: str | None, folder: Path | None, choice: Choice) -> str:
    """The command that does the same."""
    parts = ["colibri", "pull", repo_id]
    if revision is not None:
        parts += ["--revision", revision]
    if folder is not None:
        parts += ["--local-dir", str(folder)]
    for flag, patterns in (("--include", choice.include), ("--exclude", choice.exclude)):
        for pattern in patterns:
            parts += [flag, pattern]
    return shlex.join(parts)
