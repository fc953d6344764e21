"""Which folder a model name means.

The order is fixed: the word ``demo``, an existing folder, a name in the configuration file, a name under
``models_dir``, ``OWNER/NAME`` in the Hugging Face cache, which is only read. Nothing is ever downloaded.
A web address is recognised and answered with the form that is wanted. Whether the folder holds a usable
model is not decided here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from colibri.config import ConfigFile, Environment, nearest
from colibri.errors import ColibriError, error
from colibri.files import read_file, user_path

DEMO = "demo"
# The longest file that names a snapshot, in bytes.
REVISION_LIMIT = 4096
_REPOSITORY = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$", re.ASCII)
_ADDRESS = re.compile(r"^(?:[a-z][a-z0-9+.-]*://|(?:www\.)?(?:huggingface\.co|hf\.co)/)", re.IGNORECASE)
_HUB_ADDRESS = re.compile(
    r"^(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([^/\s?#]+/[^/\s?#]+)(?:[/?#].*)?$", re.IGNORECASE
)
_FORMS = "a folder, a name from the configuration file, or OWNER/NAME as on Hugging Face is wanted"


@dataclass(frozen=True, slots=True)
class Located:
    """A model that was found."""

    # How people call it.
    name: str
    # The folder, or ``demo``.
    path: str
    # "demo", "folder", "alias", "models_dir" or "cache".
    origin: str
    # Its table in the configuration file, if it has one.
    alias: str | None = None


def locate(text: str, file: ConfigFile, environment: Environment) -> Located:
    """Finds the folder of a model.

    Raises:
        InvalidValue: the text cannot name a model at all. ModelNotFound: it could, but there is none of
        that name here.
    """
    wanted = text.strip()
    if not wanted:
        raise error(
            "invalid_value", "the name of the model is empty", _FORMS, "write demo for the built-in model"
        )
    if wanted == DEMO:
        return Located(DEMO, DEMO, "demo")
    folder = user_path(wanted)
    if _holds(Path.is_dir, folder):
        return Located(_folder_name(folder) or wanted, str(folder), "folder")
    if wanted in file.models:
        return Located(wanted, str(file.models[wanted]["path"]), "alias", alias=wanted)
    if _ADDRESS.match(wanted):
        return _from_address(wanted, environment)
    if not folder.is_absolute():
        for parent in file.models_dir:
            if _holds(Path.is_dir, parent / wanted):
                return Located(wanted, str(parent / wanted), "models_dir")
    if _REPOSITORY.match(wanted) and not wanted.startswith((".", "~")):
        cached = in_cache(wanted, environment)
        if cached is not None:
            return Located(wanted, str(cached), "cache")
    raise _not_found(wanted, folder, file, environment)


def in_cache(repository: str, environment: Environment) -> Path | None:
    """The newest snapshot of ``OWNER/NAME`` in the Hugging Face cache, or None."""
    root = environment.hugging_face_cache / ("models--" + repository.replace("/", "--"))
    try:
        revision = read_file(root / "refs" / "main", REVISION_LIMIT).decode("ascii").strip()
        if re.fullmatch(r"[0-9a-f]{6,64}", revision) and (root / "snapshots" / revision).is_dir():
            return root / "snapshots" / revision
        snapshots = [entry for entry in (root / "snapshots").iterdir() if entry.is_dir()]
        return max(snapshots, key=lambda entry: entry.stat().st_mtime, default=None)
    except (OSError, ValueError):
        return None


def _holds(test: Callable[[Path], bool], path: Path) -> bool:
    """A test of a path; one that the system cannot even look at, such as a name too long, fails it."""
    try:
        return test(path)
    except (OSError, ValueError):
        return False


def _folder_name(folder: Path) -> str:
    """The name of a folder; empty where the working folder is gone, which gives names to relative ones."""
    try:
        return folder.resolve().name
    except OSError:
        return folder.name


def _from_address(wanted: str, environment: Environment) -> Located:
    match = _HUB_ADDRESS.match(wanted)
    repository = match[1] if match else ""
    if not _REPOSITORY.match(repository):
        raise error("invalid_value", f'"{wanted}" is a web address', _FORMS, "write it as OWNER/NAME")
    cached = in_cache(repository, environment)
    if cached is not None:
        return Located(repository, str(cached), "cache")
    name = repository.split("/")[1]
    raise error(
        "invalid_value",
        f'"{wanted}" is a web address; the model is called {repository}',
        f"nothing is downloaded here, and {repository} is not in {environment.hugging_face_cache}",
        f"hf download {repository} --local-dir {name}    then use  {name}",
    )


def _not_found(wanted: str, folder: Path, file: ConfigFile, environment: Environment) -> ColibriError:
    if _holds(Path.exists, folder):
        parent = folder.parent
        return error(
            "model_not_found",
            f"{wanted} is a file, not a model",
            "a model is a folder with config.json and its weights",
            f"use the folder: {parent}"
            if _holds(Path.is_file, parent / "config.json")
            else "give the folder that holds it",
        )
    parts = Path(wanted).parts
    if wanted.startswith(("/", "~", "./", "../")) or (len(parts) > 1 and _holds(Path.is_dir, Path(parts[0]))):
        return error("model_not_found", f"no model at {wanted}", _missing(folder), _instead(folder, file))
    if _REPOSITORY.match(wanted):
        name = wanted.split("/")[1]
        return error(
            "model_not_found",
            f"{wanted} is not on this computer",
            f"there is no such folder, and it is not in {environment.hugging_face_cache}; "
            "nothing is downloaded here",
            f"hf download {wanted} --local-dir {name}    then use  {name}",
        )
    if "/" in wanted or "\\" in wanted:
        return error(
            "invalid_value",
            f'"{wanted}" does not name a model',
            _FORMS,
            "write ./FOLDER for a folder, or OWNER/NAME",
        )
    return error("model_not_found", f"no model is called {wanted}", _searched(file), _instead(folder, file))


def _missing(folder: Path) -> str:
    parent = folder.parent
    while parent != parent.parent and not _holds(Path.is_dir, parent):
        parent = parent.parent
    return (
        f"there is no such folder; {parent} exists" if parent != folder.parent else "there is no such folder"
    )


def _searched(file: ConfigFile) -> str:
    places = ["no folder here has that name", f"it is not in [models] of {file.path}"]
    places.append(
        f"nor under {', '.join(map(str, file.models_dir))}"
        if file.models_dir
        else "and models_dir is not set"
    )
    return "; ".join(places)


def _instead(folder: Path, file: ConfigFile) -> str:
    names = list(file.models)
    for parent in (folder.parent, *file.models_dir):
        try:
            names += [entry.name for entry in parent.iterdir() if (entry / "config.json").is_file()]
        except OSError:
            continue
    guess = nearest(folder.name, names)
    return f"did you mean {guess}?" if guess else "give the folder of a model; demo is the built-in one"
