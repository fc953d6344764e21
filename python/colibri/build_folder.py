"""The folder in which a container is built, until it is finished.

Owns its names, and what can be told from its journal without the core, which writes it. What must hold:
nothing is changed, and a journal that cannot be read tells nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from colibri.errors import ColibriError
from colibri.json_file import read_json_object

PARTIAL: Final = ".partial"
"""Ends the name of the folder in which a container is built."""

JOURNAL_NAME: Final = ".colibri-convert.json"
"""The core's journal of a conversion that is not finished."""

SOURCE_NAME: Final = "source"
"""The folder in it for files of the hub, and for the record of their commit."""


def build_folder(target: Path) -> Path:
    """Where the container `target` is built."""
    return target.with_name(target.name + PARTIAL) if target.name else target


def finished_shards(target: Path) -> tuple[int, int]:
    """Number and bytes of the shards that an unfinished conversion to `target` has already."""
    try:
        shards = read_json_object(build_folder(target) / JOURNAL_NAME).get("shards")
    except ColibriError:
        return 0, 0
    found = (
        [shard.get("bytes") for shard in shards if isinstance(shard, dict)]
        if isinstance(shards, list)
        else []
    )
    return len(found), sum(size for size in found if isinstance(size, int))
