"""The Hugging Face hub: what a repository holds, and how one of its files comes here.

Owns every use of `huggingface_hub`, which is imported when the network is needed and not before. Its
endpoint, token and offline switch are honoured as it reads them (`HF_ENDPOINT`, `HF_TOKEN` or the token of
`hf auth login`, `HF_HUB_OFFLINE`); its progress bars, log lines and telemetry are off. Where files come to
lie is decided by `colibri.hub_places`.

Refuses names of files that lead out of a folder, and digests that are none. What must hold: a file is
fetched from the one commit that was resolved, is complete and has its digest before anybody sees it, and what
was fetched of it is kept and used by the next run; every failure is an error of `colibri.errors`
that names the command with which to go on.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

from colibri import __version__
from colibri.errors import ColibriError, error, shown
from colibri.files import reason
from colibri.hub_files import RemoteFile, RemoteModel, Repository, digest_of, hasher, is_digest, is_inside

if TYPE_CHECKING:
    from types import ModuleType

MAIN: Final = "main"
"""The revision that is meant where none is named."""

CONFIG_NAME: Final = "config.json"
INDEX_NAME: Final = "model.safetensors.index.json"
MANIFEST_NAME: Final = "colibri.json"

CALL_WAITS: Final = (0.5, 1.0, 2.0)
"""Seconds to wait before a question is asked again."""

FETCH_WAITS: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 60.0)
"""Seconds to wait before a transfer that brings nothing is tried again; bytes that come begin it anew."""

# The largest file that is read into memory, in bytes: the index of a large model has some MB.
_SMALL_LIMIT: Final = 1 << 28
_COMMIT: Final = re.compile(r"[0-9a-f]{40,64}")
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
# Answers after which the same question may be answered otherwise.
_PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)

T = TypeVar("T")


Sink = Callable[[int], object]
"""Is told how many bytes have come; a negative number takes some back."""


def is_repository(text: str) -> bool:
    """Whether a text has the form `OWNER/NAME`."""
    return _REPOSITORY.fullmatch(text) is not None


class Hub:
    """The hub, as one command uses it.

    Args:
        repo_id: `OWNER/NAME`.
        command: the command with which to go on after a failure; errors name it.
        offline: whether the network may not be used.
        stop: set from outside to end what runs.
    """

    def __init__(
        self, repo_id: str, command: str, *, offline: bool = False, stop: threading.Event | None = None
    ) -> None:
        self.repo_id = repo_id
        self.command = command
        self.stop = stop or threading.Event()
        self._offline = offline

    @property
    def offline(self) -> bool:
        """Whether the network may not be used: said here, or by `HF_HUB_OFFLINE`."""
        return self._offline or bool(_library().constants.HF_HUB_OFFLINE)

    def repository(self, revision: str | None = None) -> Repository:
        """Resolves a revision and lists its files.

        Raises:
            DownloadError: there is no such repository or revision, it is not open to this user, or the hub
                cannot be reached.
        """
        wanted = revision or MAIN
        if self.offline:
            raise self.failed(
                f"the hub cannot be asked for {self.repo_id}",
                "the network may not be used: --offline or HF_HUB_OFFLINE is set",
                f"without it:  {self.command}",
            )
        library = _library()
        api = library.HfApi(library_name="colibri", library_version=__version__)
        timeout = float(library.constants.HF_HUB_DOWNLOAD_TIMEOUT)

        def ask() -> Any:
            return api.model_info(self.repo_id, revision=wanted, files_metadata=True, timeout=timeout)

        what = f"cannot list the files of {self.repo_id}"
        try:
            info = self._retried(what, CALL_WAITS, ask)
        except library.errors.HFValidationError as fault:
            raise error("invalid_value", f"{self.repo_id} names no repository", str(fault)) from None
        except (ValueError, KeyError, TypeError, AttributeError) as fault:
            if isinstance(fault, ColibriError):
                raise
            raise self.failed(what, f"the answer is not that of a hub: {fault}") from None
        commit = info.sha
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise self.failed(what, f"the hub names {shown(commit)} as the commit")
        files = sorted((self._listed(sibling) for sibling in info.siblings or ()), key=lambda file: file.name)
        return Repository(self.repo_id, wanted, commit, tuple(files))

    def _listed(self, sibling: Any) -> RemoteFile:
        """A file as the hub lists it, checked."""
        name, size, blob = sibling.rfilename, sibling.size, sibling.blob_id
        large = sibling.lfs
        digest = None if large is None else large["sha256"] if isinstance(large, dict) else large.sha256
        sane = isinstance(name, str) and is_inside(name)
        known = all(value is None or is_digest(value) for value in (blob, digest)) and (blob or digest)
        if not sane or not known or isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise self.failed(
                f"the hub lists a file of {self.repo_id} that cannot be used",
                f"name {shown(name)}, size {shown(size)}, digest {shown(digest or blob)}",
                "look at the repository; nothing was fetched",
            )
        return RemoteFile(name, size, digest, None if digest else blob)

    def read(self, repository: Repository, name: str) -> bytes | None:
        """The content of a small file; None where the repository has none of that name."""
        file = repository.find(name)
        if file is None:
            return None
        if file.size > _SMALL_LIMIT:
            raise self.failed(f"{name} of {self.repo_id} has {file.size:,} bytes", "that is no such file")
        what = f"cannot fetch {name} of {self.repo_id}"

        def ask() -> bytes:
            content = b""
            with self._stream(repository, file, 0) as response:
                for piece in response.iter_bytes():
                    content += piece
                    if len(content) > file.size:
                        break
            return content

        content = self._retried(what, CALL_WAITS, ask)
        if len(content) != file.size or digest_of(content, file) != file.etag:
            raise self.failed(what, "what came is not what the hub lists")
        return content

    def head(self, repository: Repository, file: RemoteFile, count: int) -> bytes:
        """The first bytes of a file, at most `count`. They cannot be checked."""

        def ask() -> bytes:
            content = b""
            with self._stream(repository, file, 0, count) as response:
                for piece in response.iter_bytes():
                    content += piece
                    if len(content) >= count:
                        break
            return content[:count]

        return self._retried(f"cannot fetch the head of {file.name} of {self.repo_id}", CALL_WAITS, ask)

    def describe(self, repository: Repository) -> RemoteModel:
        """Configuration, index and manifest of a model, and the sizes of its files. Nothing is kept."""
        texts = {name: self.read(repository, name) for name in (CONFIG_NAME, INDEX_NAME, MANIFEST_NAME)}
        config = texts[CONFIG_NAME]
        if config is None:
            raise error(
                "model_not_found",
                f"{self.repo_id} holds no model",
                f"it has no {CONFIG_NAME}",
                f"look at its files; the revision is {repository.revision}",
            )
        tables = {name: self._table(name, text) for name, text in texts.items() if text is not None}
        return RemoteModel(
            self.repo_id,
            repository.commit,
            tables[CONFIG_NAME],
            [(file.name, file.size) for file in repository.files],
            tables.get(INDEX_NAME),
            tables.get(MANIFEST_NAME),
        )

    def _table(self, name: str, text: bytes) -> dict[str, Any]:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as fault:
            raise error("model_corrupt", f"{name} of {self.repo_id} is no JSON", str(fault)) from None
        if not isinstance(value, dict):
            raise error("model_corrupt", f"{name} of {self.repo_id} is no JSON object")
        return value

    def fetch(self, repository: Repository, file: RemoteFile, partial: Path, came: Sink) -> None:
        """Brings a file to `partial`, going on where an earlier run stopped.

        On return `partial` is complete, has the digest that the hub lists, and is on the disk. After a
        failure it holds what has come, for the next run.

        Args:
            repository: where the file is listed.
            file: the file.
            partial: where its bytes are collected; its folder exists.
            came: told of bytes that come; a negative number takes back what cannot be used.

        Raises:
            DownloadError: it cannot be fetched. StorageError: it cannot be written.
            Cancelled: it was stopped.
        """
        what = f"cannot fetch {file.name} of {self.repo_id}"
        transfer = _Transfer(self, repository, file, partial, came)
        try:
            with transfer.open():
                for _ in range(2):
                    self._retried(what, FETCH_WAITS, transfer.go_on, lambda: transfer.size)
                    if transfer.check():
                        return
                    # What an earlier run left may be to blame, once.
                    transfer.begin_again()
        except OSError as fault:
            raise self.not_written(fault, partial) from None
        raise self.failed(
            what, f"its digest is not {file.etag}, which the hub lists", "the publisher must repair it"
        )

    @contextmanager
    def _stream(
        self, repository: Repository, file: RemoteFile, start: int, count: int | None = None
    ) -> Iterator[Any]:
        library = _library()
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        url = library.hf_hub_url(repository.repo_id, file.name, revision=repository.commit)
        headers = build_hf_headers(library_name="colibri", library_version=__version__)
        # Compressed answers have no length, and no ranges of the content.
        headers["Accept-Encoding"] = "identity"
        if start or count is not None:
            headers["Range"] = f"bytes={start}-{'' if count is None else start + count - 1}"
        timeout = float(library.constants.HF_HUB_DOWNLOAD_TIMEOUT)
        with library.get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
            if response.status_code >= 400:
                response.read()
            library.hf_raise_for_status(response)
            yield response

    def _retried(
        self,
        what: str,
        waits: tuple[float, ...],
        ask: Callable[[], T],
        measure: Callable[[], int] = lambda: 0,
    ) -> T:
        """Asks until there is an answer, or one that will not change."""
        from huggingface_hub import errors
        from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

        failures, reached = 0, measure()
        while True:
            self.check_stop()
            try:
                return ask()
            except (HTTPError, errors.OfflineModeIsEnabled, _CutShort) as fault:
                if measure() > reached:
                    failures, reached = 0, measure()
                if failures >= len(waits) or not _may_pass(fault):
                    raise self._translated(what, fault) from None
                pause = max(waits[failures], _asked_pause(fault))
            failures += 1
            self.stop.wait(pause)

    def check_stop(self) -> None:
        """Raises `Cancelled` when `stop` is set."""
        if self.stop.is_set():
            raise self.cancelled()

    def cancelled(self) -> ColibriError:
        """The error after a request to stop."""
        return error(
            "cancelled", "the transfer was stopped", "what has come is kept", f"go on:  {self.command}"
        )

    def failed(self, what: str, why: str | None = None, fix: str | None = None) -> ColibriError:
        """A `DownloadError`; without a better fix it names the command to go on with."""
        return error("download_failed", what, why, fix or f"try again:  {self.command}")

    def not_written(self, fault: OSError, path: Path) -> ColibriError:
        """The error for a file that the system did not let us write."""
        if fault.errno in _FULL:
            return error(
                "disk_full",
                f"no space is left for {path}",
                reason(fault),
                f"free some space, then go on:  {self.command}",
            )
        return error("output_not_writable", f"cannot write {path}", reason(fault), "choose another folder")

    def _translated(self, what: str, fault: Exception) -> ColibriError:
        from huggingface_hub import errors

        response = getattr(fault, "response", None)
        status = getattr(response, "status_code", None)
        again = f"{self.command}"
        said = _said(fault)
        if isinstance(fault, errors.OfflineModeIsEnabled):
            return self.failed(what, "HF_HUB_OFFLINE is set", f"unset it, then:  {again}")
        if isinstance(fault, errors.GatedRepoError) or status == 403:
            why = "access must be granted by its owner" if status != 401 else "access needs a token"
            return self.failed(
                what,
                f"{why}: the hub answered {status}{said}",
                f"ask for access on the page of {self.repo_id}, then  hf auth login  and:  {again}",
            )
        if isinstance(fault, errors.RevisionNotFoundError):
            return self.failed(
                what, f"there is no such revision{said}", "give a branch, a tag or a commit as --revision"
            )
        if isinstance(fault, errors.RepositoryNotFoundError) or status == 401:
            return self.failed(
                what,
                f"there is no {self.repo_id}, or it is private: the hub answered {status}{said}",
                f"check the name; for a private one  hf auth login  or set HF_TOKEN, then:  {again}",
            )
        if status == 404:
            return self.failed(
                what, f"the hub does not have it (404){said}", f"check the name, then:  {again}"
            )
        if status is not None:
            return self.failed(what, f"the hub answered {status}{said}", f"wait a while, then:  {again}")
        if "Timeout" in type(fault).__name__:
            seconds = _library().constants.HF_HUB_DOWNLOAD_TIMEOUT
            return self.failed(
                what,
                f"the hub was silent for {seconds} s (HF_HUB_DOWNLOAD_TIMEOUT)",
                f"check the network, then:  {again}",
            )
        endpoint = _library().constants.ENDPOINT
        why = f"the connection to {endpoint} failed: {str(fault) or type(fault).__name__}"
        return self.failed(what, why, f"check the network, then:  {again}")


def describe(repo_id: str, revision: str | None = None, offline: bool = False) -> RemoteModel:
    """Configuration, index and manifest of a model that is not here, and the sizes of its files.

    Raises:
        DownloadError: the hub cannot be asked. ModelNotFound: the repository holds no model. ModelError: a
            file of it is no JSON.
    """
    hub = Hub(repo_id, f"colibri plan {repo_id}", offline=offline)
    return hub.describe(hub.repository(revision))


class _CutShort(Exception):
    """An answer ended before its length, or was not the one that was wanted."""


class _Transfer:
    """One file on its way."""

    def __init__(self, hub: Hub, repository: Repository, file: RemoteFile, partial: Path, came: Sink) -> None:
        self._hub, self._repository, self._file, self._partial = hub, repository, file, partial
        self._came = came
        self._digest = hasher(file)
        self.size = 0
        self._out: IO[bytes]

    @contextmanager
    def open(self) -> Iterator[None]:
        """Takes the partial file, and what is in it into account."""
        descriptor = os.open(self._partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with open(descriptor, "r+b", buffering=0) as self._out:
            self._lock(descriptor)
            if os.fstat(descriptor).st_size > self._file.size:
                self._out.truncate(0)
            while piece := self._out.read(min(1 << 22, self._file.size - self.size)):
                self._hub.check_stop()
                self._digest.update(piece)
                self.size += len(piece)
            yield

    def _lock(self, descriptor: int) -> None:
        import fcntl

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as fault:
            if fault.errno not in (errno.EAGAIN, errno.EACCES):
                # A file system without locks.
                return
            raise self._hub.failed(
                f"{self._file.name} is being fetched by another process",
                f"it holds {self._partial}",
                f"wait for it, then:  {self._hub.command}",
            ) from None

    def begin_again(self) -> None:
        """Forgets what has come."""
        self._came(-self.size)
        self._out.seek(0)
        self._out.truncate(0)
        self._digest, self.size = hasher(self._file), 0

    def go_on(self) -> None:
        """Fetches what is missing, in one answer."""
        from huggingface_hub import errors

        if self.size == self._file.size:
            return
        try:
            with self._hub._stream(self._repository, self._file, self.size) as response:
                if self.size and response.status_code != 206:
                    # The server knows no ranges.
                    self.begin_again()
                self._check_length(response.headers)
                for piece in response.iter_bytes():
                    self._hub.check_stop()
                    self._take(piece)
        except errors.HfHubHTTPError as fault:
            if fault.response.status_code == 416:
                self.begin_again()
            raise
        if self.size < self._file.size:
            raise _CutShort(f"the connection ended after {self.size:,} of {self._file.size:,} bytes")

    def _check_length(self, headers: Any) -> None:
        length = headers.get("Content-Length")
        if length is not None and length.isdigit() and self.size + int(length) != self._file.size:
            raise self._hub.failed(
                f"cannot fetch {self._file.name} of {self._repository.repo_id}",
                f"the hub lists {self._file.size:,} bytes and sends {self.size + int(length):,}",
                "the publisher must repair it; a mirror may be out of date (HF_ENDPOINT)",
            )

    def _take(self, piece: bytes) -> None:
        if self.size + len(piece) > self._file.size:
            raise _CutShort(f"more than {self._file.size:,} bytes came")
        left = memoryview(piece)
        while left:
            left = left[self._out.write(left) or 0 :]
        self._digest.update(piece)
        self.size += len(piece)
        self._came(len(piece))

    def check(self) -> bool:
        """Whether all is here and right; it is on the disk then."""
        right: bool = self._digest.hexdigest() == self._file.etag
        if right:
            os.fsync(self._out.fileno())
        return right


def _may_pass(fault: Exception) -> bool:
    """Whether the same question may be answered otherwise later."""
    from huggingface_hub import errors

    if isinstance(fault, errors.OfflineModeIsEnabled):
        return False
    response = getattr(fault, "response", None)
    status = getattr(response, "status_code", None)
    return status is None or status in _PASSING or status == 416


def _asked_pause(fault: Exception) -> float:
    """Seconds that the hub asks to wait, at most two minutes."""
    headers = getattr(getattr(fault, "response", None), "headers", {})
    wanted = headers.get("Retry-After", "")
    return min(float(wanted), 120.0) if wanted.isdigit() else 0.0


def _said(fault: Exception) -> str:
    """What the hub said, in one line."""
    message = getattr(fault, "server_message", None)
    return f": {' '.join(str(message).split())[:200]}" if message else ""


def _library() -> ModuleType:
    """The library, silent."""
    import huggingface_hub
    from huggingface_hub import constants, errors  # noqa: F401

    if not constants.HF_HUB_DISABLE_TELEMETRY:
        constants.HF_HUB_DISABLE_TELEMETRY = True
    log = logging.getLogger("huggingface_hub")
    log.setLevel(max(log.level, logging.ERROR))
    return huggingface_hub
