"""Reading files: bounded in size, and never waiting where a file is meant.

Owns the one way in which this package reads a file. Refuses devices and pipes where a regular file is
wanted (reading them may never end), and everything past a limit. What must hold: no more than the limit is
ever held.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

_PIECE: Final = 1 << 20


class TooLarge(OSError):
    """A file has more bytes than its limit."""

    def __init__(self, limit: int, path: Path | None = None) -> None:
        unit, count = ("MiB", limit >> 20) if limit >> 20 else ("bytes", limit)
        super().__init__(
            errno.EFBIG, f"it has more than {count} {unit}, the limit", *([] if path is None else [str(path)])
        )


def read_file(path: Path, limit: int, *, regular: bool = True) -> bytes:
    """The content of a file of at most `limit` bytes.

    Args:
        path: the file.
        limit: the most bytes it may have.
        regular: whether it must be a regular file. Otherwise a pipe or device is read to its end, too.

    Raises:
        TooLarge: it has more.
        OSError: it cannot be read; the text says why. A path that cannot be one counts as missing.
    """
    # Opening a pipe without a writer waits, unless it is opened like this.
    flags = os.O_RDONLY | os.O_CLOEXEC | (os.O_NONBLOCK if regular else 0)
    try:
        descriptor = os.open(path, flags)
    except ValueError:
        raise FileNotFoundError(errno.ENOENT, "it is not the name of a file", str(path)) from None
    try:
        facts = os.fstat(descriptor)
        if regular and not stat.S_ISREG(facts.st_mode):
            what = "a folder" if stat.S_ISDIR(facts.st_mode) else "a device or a pipe"
            raise OSError(errno.EINVAL, f"it is {what}, not a file", str(path))
        if facts.st_size > limit:
            raise TooLarge(limit, path)
        return read_descriptor(descriptor, limit, path)
    finally:
        os.close(descriptor)


def read_descriptor(descriptor: int, limit: int, path: Path | None = None) -> bytes:
    """All that is left to read from a descriptor, at most `limit` bytes; errors are those of `read_file`."""
    pieces: list[bytes] = []
    size = 0
    while piece := os.read(descriptor, _PIECE):
        size += len(piece)
        if size > limit:
            raise TooLarge(limit, path)
        pieces.append(piece)
    return b"".join(pieces)


def user_path(text: str) -> Path:
    """A path as a person writes it: `~` is the home folder, where there is such a one."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def reason(fault: Exception) -> str:
    """Why a file could not be read, without its name."""
    return (fault.strerror if isinstance(fault, OSError) else None) or str(fault) or type(fault).__name__
