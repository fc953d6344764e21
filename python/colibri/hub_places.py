"""Where the files of a repository come to lie: the Hugging Face cache, or a folder.

Owns the layout of both. In the cache a content lies under its digest in `blobs`, and `snapshots/COMMIT` links
to it, as all Hugging Face tools expect; `refs/REVISION` names the newest complete commit. A folder holds the
files under their names and a record of what they are. Refuses a folder that holds another repository. What
must hold: a file has its final name only when it is complete and checked.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import threading
from pathlib import Path
from typing import Final, Protocol

from colibri.errors import error, shown
from colibri.files import read_file, reason
from colibri.hub_files import RemoteFile, Repository, has_digest

RECORD_NAME: Final = ".colibri-pull.json"
"""What the files of a folder are: the repository, its commit, and the digest of each."""

PARTIAL: Final = ".incomplete"
"""Ends the names of files that are on their way."""

REVISION_LIMIT: Final = 4096
"""The longest file that names a commit, in bytes."""

_RECORD_LIMIT: Final = 1 << 24


class Place(Protocol):
    """A place for the files of one repository at one commit."""

    @property
    def folder(self) -> Path:
        """Where the files are found under their names."""

    def has(self, file: RemoteFile) -> bool:
        """Whether the file is here, by its size and the record of its digest; its content is not read."""

    def adopt(self, file: RemoteFile, stop: threading.Event) -> bool:
        """Whether the file, or its content, is here after all; its content may be read."""

    def partial(self, file: RemoteFile) -> Path:
        """Where its bytes are collected."""

    def accept(self, file: RemoteFile) -> None:
        """Gives the final name to a file that is complete at `partial`."""

    def finish(self) -> None:
        """All that was wanted is here."""


def repository_folder(cache: Path, repo_id: str) -> Path:
    """The folder of a repository in the cache."""
    return cache / ("models--" + repo_id.replace("/", "--"))


def cached_snapshot(cache: Path, repo_id: str, revision: str | None = None) -> Path | None:
    """The snapshot of a revision in the cache; without one the newest. None where there is none."""
    root = repository_folder(cache, repo_id)
    snapshots = root / "snapshots"
    try:
        if revision is not None and _is_commit(revision) and (snapshots / revision).is_dir():
            return snapshots / revision
        with contextlib.suppress(OSError):
            commit = read_file(root / "refs" / (revision or "main"), REVISION_LIMIT).decode("ascii").strip()
            if _is_commit(commit) and (snapshots / commit).is_dir():
                return snapshots / commit
        if revision is not None:
            return None
        found = [entry for entry in snapshots.iterdir() if entry.is_dir()]
        return max(found, key=lambda entry: entry.stat().st_mtime, default=None)
    except (OSError, ValueError):
        return None


class CachePlace:
    """The Hugging Face cache, which all its tools share."""

    def __init__(self, cache: Path, repository: Repository) -> None:
        self._root = repository_folder(cache, repository.repo_id)
        self._repository = repository

    @property
    def folder(self) -> Path:
        """The snapshot of the commit."""
        return self._root / "snapshots" / self._repository.commit

    def _blob(self, file: RemoteFile) -> Path:
        return self._root / "blobs" / file.etag

    def has(self, file: RemoteFile) -> bool:
        """See `Place`."""
        return any(_size(path) == file.size for path in (self.folder / file.name, self._blob(file)))

    def adopt(self, file: RemoteFile, stop: threading.Event) -> bool:  # noqa: ARG002
        """See `Place`; a content in the cache lies under its digest."""
        if _size(self.folder / file.name) == file.size:
            return True
        if _size(self._blob(file)) != file.size:
            return False
        self._link(file)
        return True

    def partial(self, file: RemoteFile) -> Path:
        """See `Place`."""
        blob = self._blob(file)
        return blob.with_name(blob.name + PARTIAL)

    def accept(self, file: RemoteFile) -> None:
        """See `Place`."""
        os.replace(self.partial(file), self._blob(file))
        _sync_folder(self._blob(file).parent)
        self._link(file)

    def _link(self, file: RemoteFile) -> None:
        """Lets the name of the file lead to its content; a copy where the file system has no links."""
        path, blob = self.folder / file.name, self._blob(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")
        fresh.unlink(missing_ok=True)
        try:
            os.symlink(os.path.relpath(blob, path.parent), fresh)
        except OSError:
            shutil.copyfile(blob, fresh)
        os.replace(fresh, path)

    def finish(self) -> None:
        """See `Place`; the revision means this commit from now on."""
        if self._repository.revision != self._repository.commit:
            path = self._root / "refs" / self._repository.revision
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, self._repository.commit.encode("ascii"))


class FolderPlace:
    """A folder of its own.

    Raises:
        StorageError: it holds another repository, or is no folder.
    """

    def __init__(self, folder: Path, repository: Repository) -> None:
        self._folder = folder
        self._repository = repository
        self._lock = threading.Lock()
        self._digests: dict[str, str] = {}
        record = read_record(folder)
        if record is not None:
            if record.get("repository") != repository.repo_id:
                raise error(
                    "output_not_writable",
                    f"{folder} holds another model",
                    f"{RECORD_NAME} in it says {shown(record.get('repository'))}",
                    "choose another folder",
                )
            known = record.get("files")
            self._digests = (
                {str(name): str(etag) for name, etag in known.items()} if isinstance(known, dict) else {}
            )
        elif folder.exists() and not folder.is_dir():
            raise error("output_not_writable", f"{folder} is no folder", None, "choose another folder")

    @property
    def folder(self) -> Path:
        """The folder."""
        return self._folder

    def has(self, file: RemoteFile) -> bool:
        """See `Place`; a file that is not in the record counts by its size until it is read."""
        etag = self._digests.get(file.name)
        return _size(self._folder / file.name) == file.size and etag in (None, file.etag)

    def adopt(self, file: RemoteFile, stop: threading.Event) -> bool:
        """See `Place`; a file that is not in the record is read to its end."""
        if not self.has(file):
            return False
        if file.name not in self._digests:
            if not has_digest(self._folder / file.name, file, stop):
                return False
            self._note(file)
        return True

    def partial(self, file: RemoteFile) -> Path:
        """See `Place`; what was fetched of another content of that name is no part of it."""
        path = self._folder / file.name
        return path.with_name(f"{path.name}.{file.etag[:12]}{PARTIAL}")

    def accept(self, file: RemoteFile) -> None:
        """See `Place`."""
        path = self._folder / file.name
        partial = self.partial(file)
        for other in path.parent.glob(f"{glob_escape(path.name)}.????????????{PARTIAL}"):
            if other != partial:
                other.unlink(missing_ok=True)
        os.replace(partial, path)
        _sync_folder(path.parent)
        self._note(file)

    def _note(self, file: RemoteFile) -> None:
        with self._lock:
            self._digests[file.name] = file.etag
            write_record(self._folder, self._repository, self._digests)

    def finish(self) -> None:
        """See `Place`; the record is kept as files come."""


def read_record(folder: Path) -> dict[str, object] | None:
    """What a folder says about its files, or None."""
    try:
        value = json.loads(read_file(folder / RECORD_NAME, _RECORD_LIMIT))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def write_record(folder: Path, repository: Repository, digests: dict[str, str]) -> None:
    """Says what the files of a folder are."""
    record = {
        "version": 1,
        "repository": repository.repo_id,
        "revision": repository.revision,
        "commit": repository.commit,
        "files": dict(sorted(digests.items())),
    }
    write_whole(folder / RECORD_NAME, json.dumps(record, indent=1).encode())


def missing_bytes(place: Place, file: RemoteFile) -> int:
    """Bytes of a file that have still to come; what an earlier run left of it is not among them."""
    if place.has(file):
        return 0
    there = _size(place.partial(file)) or 0
    return file.size - there if there <= file.size else file.size


def free_space(path: Path) -> tuple[int, Path]:
    """Free bytes of the file system on which `path` is or will be, and the folder that exists there.

    Raises:
        StorageError: the system does not say.
    """
    there = path.absolute()
    while there != there.parent and not there.is_dir():
        there = there.parent
    try:
        return shutil.disk_usage(there).free, there
    except OSError as fault:
        raise error(
            "output_not_writable", f"cannot write {path}", reason(fault), "choose another folder"
        ) from None


def write_whole(path: Path, content: bytes) -> None:
    """Writes a small file that is there in whole or not at all."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.new")
    try:
        with open(fresh, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def glob_escape(name: str) -> str:
    """A name in which no character has a meaning for `glob`."""
    return re.sub(r"([*?\[])", r"[\1]", name)


def _is_commit(text: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{6,64}", text) is not None


def _size(path: Path) -> int | None:
    try:
        facts = path.stat()
    except (OSError, ValueError):
        return None
    return facts.st_size if stat.S_ISREG(facts.st_mode) else None


def _sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
