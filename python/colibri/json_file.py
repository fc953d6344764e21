"""Small JSON files of a model folder: read whole, checked, bounded in size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from colibri.errors import error
from colibri.files import read_file, reason

FILE_LIMIT: Final = 16 << 20
"""The largest file that is read, in bytes; such files hold a few kilobytes."""


def read_json_object(path: Path) -> dict[str, Any]:
    """Reads a small JSON object; a missing file is the empty object.

    Raises:
        ModelError: the file is larger than `FILE_LIMIT`, unreadable, or holds something else.
    """
    try:
        value = json.loads(read_file(path, FILE_LIMIT))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (ValueError, RecursionError, OSError) as fault:
        raise error(
            "model_corrupt",
            f"{path} cannot be read",
            reason(fault),
            f"take {path.name} from the original model",
        ) from None
    if not isinstance(value, dict):
        raise error("model_corrupt", f"{path} holds no JSON object", f"found {type(value).__name__}")
    return value
