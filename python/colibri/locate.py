"""Which folder a model name means.

The order is fixed: the word ``demo``, an existing folder, a name in the configuration file, a name under
``models_dir``, ``OWNER/NAME`` in the Hugging Face cache, which is only read. Nothing is downloaded here. A
web address is taken for the ``OWNER/NAME`` that it shows. Whether the folder holds a usable model is not
decided here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from colibri.build_folder import JOURNAL_NAME, PARTIAL, SOURCE_NAME, build_folder
from colibri.config import ConfigFile, Environment, nearest
from colibri.errors import ColibriError, error
from colibri.files import user_path
from colibri.hub_places import cached_snapshot, read_record

DEMO = "demo"
_REPOSITORY = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$", re.ASCII)
_ADDRESS = re.compile(r"^(?:[a-z][a-z0-9+.-]*://|(?:www\.)?(?:huggingface\.co|hf\.co)/)", re.IGNORECASE)
_HUB_ADDRESS = re.compile(
    r"^(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([^/\s?#]+/[^/\s?#]+)"
    r"(?:/(?:tree|blob|resolve)/([^/\s?#]+))?(?:[/?#].*)?$",
    re.IGNORECASE,
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


def locate(text: str, file: ConfigFile, environment: Environment, revision: str | None = None) -> Located:
    """Finds the folder of a model; ``revision`` chooses among the snapshots of the cache.

    Raises:
        InvalidValue: the text cannot name a model at all. ModelNotFound: it could, but there is none of
        that name here. ModelError: its conversion is not finished.
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
        if folder.name.endswith(PARTIAL) and _unfinished(folder):
            raise _not_finished(wanted, folder)
        return Located(_folder_name(folder) or wanted, str(folder), "folder")
    if wanted in file.models:
        return Located(wanted, str(file.models[wanted]["path"]), "alias", alias=wanted)
    if _ADDRESS.match(wanted):
        return _from_address(wanted, environment, revision)
    if not folder.is_absolute():
        for parent in file.models_dir:
            if _holds(Path.is_dir, parent / wanted):
                return Located(wanted, str(parent / wanted), "models_dir")
    if _REPOSITORY.match(wanted) and not wanted.startswith((".", "~")):
        cached = in_cache(wanted, environment, revision)
        if cached is not None:
            return Located(wanted, str(cached), "cache")
    raise _not_found(wanted, folder, file, environment, revision)


def in_cache(repository: str, environment: Environment, revision: str | None = None) -> Path | None:
    """The snapshot of ``OWNER/NAME`` in the Hugging Face cache, or None; without a revision the newest."""
    return cached_snapshot(environment.hugging_face_cache, repository, revision)


def repository_of(text: str) -> tuple[str, str | None] | None:
    """The repository that ``OWNER/NAME`` or an address means, and the revision that the address has."""
    wanted = text.strip()
    match = _HUB_ADDRESS.match(wanted)
    name, revision = (match[1], match[2]) if match else (wanted, None)
    return (name, revision) if _REPOSITORY.match(name) else None


def download_command(repository: str, revision: str | None = None) -> str:
    """The command that brings a model here."""
    return shlex.join(["colibri", "pull", repository, *(["--revision", revision] if revision else [])])


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


def _from_address(wanted: str, environment: Environment, revision: str | None) -> Located:
    found = repository_of(wanted)
    if found is None:
        raise error("invalid_value", f'"{wanted}" is a web address', _FORMS, "write it as OWNER/NAME")
    repository, named = found
    revision = revision or named
    cached = in_cache(repository, environment, revision)
    if cached is not None:
        return Located(repository, str(cached), "cache")
    raise _not_here(repository, environment, revision)


def _not_here(repository: str, environment: Environment, revision: str | None) -> ColibriError:
    of = f" at {revision}" if revision else ""
    return error(
        "model_not_found",
        f"{repository}{of} is not on this computer",
        f"there is no such folder, and it is not in {environment.hugging_face_cache}",
        download_command(repository, revision) + ", or add --pull",
    )


def _not_found(
    wanted: str, folder: Path, file: ConfigFile, environment: Environment, revision: str | None
) -> ColibriError:
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
    partial = build_folder(folder)
    if _unfinished(partial):
        raise _not_finished(wanted, partial)
    parts = Path(wanted).parts
    if wanted.startswith(("/", "~", "./", "../")) or (len(parts) > 1 and _holds(Path.is_dir, Path(parts[0]))):
        return error("model_not_found", f"no model at {wanted}", _missing(folder), _instead(folder, file))
    if _REPOSITORY.match(wanted):
        return _not_here(wanted, environment, revision)
    if "/" in wanted or "\\" in wanted:
        return error(
            "invalid_value",
            f'"{wanted}" does not name a model',
            _FORMS,
            "write ./FOLDER for a folder, or OWNER/NAME",
        )
    return error("model_not_found", f"no model is called {wanted}", _searched(file), _instead(folder, file))


def _unfinished(folder: Path) -> bool:
    """Whether a conversion that is not finished lies there."""
    return _holds(Path.is_file, folder / JOURNAL_NAME)


def _not_finished(wanted: str, partial: Path) -> ColibriError:
    record = read_record(partial / SOURCE_NAME) or {}
    source = record.get("repository")
    target = str(partial).removesuffix(PARTIAL)
    command = shlex.join(["colibri", "convert", source if isinstance(source, str) else "SRC", target])
    return error(
        "model_incomplete",
        f"{wanted} is not finished: its conversion was stopped",
        f"what is done of it lies in {partial}",
        f"go on, with the options with which it was begun:  {command}",
    )


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
