"""What a repository holds, as values, and the digests by which the hub names contents.

Refuses nothing and imports nothing of the package. What must hold: a name is used as a path only when
`is_inside` says that it stays inside its folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import threading
from pathlib import Path
from typing import Any, Final

_HEX: Final = re.compile(r"(?:[0-9a-f]{40}|[0-9a-f]{64})")


@dataclasses.dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository.

    Attributes:
        name: its path in the repository, with `/` between the parts.
        size: its bytes.
        sha256: digest of its content, for files in large file storage.
        blob: the id git gives to its content, for all others.
    """

    name: str
    size: int
    sha256: str | None = None
    blob: str | None = None

    @property
    def etag(self) -> str:
        """The name of its content: the digest, as the cache uses it."""
        return self.sha256 or self.blob or ""


@dataclasses.dataclass(frozen=True, slots=True)
class Repository:
    """The files of a repository at one commit.

    Attributes:
        repo_id: `OWNER/NAME`.
        revision: the branch, tag or commit that was asked for.
        commit: the commit that it is now.
        files: all files, by name.
    """

    repo_id: str
    revision: str
    commit: str
    files: tuple[RemoteFile, ...]

    def find(self, name: str) -> RemoteFile | None:
        """The file of that name, or None."""
        return next((file for file in self.files if file.name == name), None)


@dataclasses.dataclass(frozen=True, slots=True)
class RemoteModel:
    """What can be known of a model that is not here.

    Attributes:
        repo_id: `OWNER/NAME`; commit: the commit that was read.
        config: its `config.json`.
        files: names and bytes of all its files.
        index: its `model.safetensors.index.json`; manifest: its `colibri.json`; None where it has none.
    """

    repo_id: str
    commit: str
    config: dict[str, Any]
    files: list[tuple[str, int]]
    index: dict[str, Any] | None
    manifest: dict[str, Any] | None


def has_digest(path: Path, file: RemoteFile, stop: threading.Event) -> bool:
    """Whether a file here has the content of one on the hub; read to its end unless `stop` is set."""
    digest = hasher(file)
    with open(path, "rb") as content:
        while piece := content.read(1 << 22):
            if stop.is_set():
                return False
            digest.update(piece)
    return str(digest.hexdigest()) == file.etag


def hasher(file: RemoteFile) -> Any:
    """The digest of a content, begun: the one by which the hub names it."""
    if file.sha256 is not None:
        return hashlib.sha256()
    # Git's name of a content: SHA-1, or SHA-256 in repositories made for it, over a line that tells its size.
    digest = hashlib.sha256() if len(file.etag) == 64 else hashlib.sha1(usedforsecurity=False)
    digest.update(b"blob %d\0" % file.size)
    return digest


def digest_of(content: bytes, file: RemoteFile) -> str:
    """The digest of a whole content."""
    digest = hasher(file)
    digest.update(content)
    return str(digest.hexdigest())


def is_inside(name: str) -> bool:
    """Whether a name of a file stays inside its folder."""
    parts = name.split("/")
    plain = name.isprintable() and "\\" not in name and len(name) < 1024
    return plain and all(part not in ("", ".", "..") for part in parts)


def is_digest(value: object) -> bool:
    """Whether a value has the form of a digest: 40 or 64 hexadecimal digits."""
    return isinstance(value, str) and _HEX.fullmatch(value) is not None
