"""Which model a run uses, opening it with progress, and the first lines of facts.

The search order is that of ``colibri.locate``. When nothing names a model the embedded demo is used and
one line says so.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colibri import __version__, locate
from colibri.cli import failure
from colibri.cli.console import console
from colibri.cli.interrupt import interrupts
from colibri.cli.progress import UNITS as UNITS
from colibri.cli.progress import Progress, choose_display
from colibri.cli.words import bytes_in_words, count_in_words, one_line, parameters_in_words
from colibri.config import Settings
from colibri.errors import ColibriError, ModelNotFound
from colibri.settings import MODELS_KEY

if TYPE_CHECKING:
    from colibri.model import Model
    from colibri.results import Plan

# With these options the experts of the embedded demo do not all fit, and are read as they are needed.
STREAMING = "--io direct --ram 24MB"


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The model of this run."""

    name: str
    # The folder, or ``demo``.
    path: str
    origin: str
    # Nobody named a model.
    by_default: bool


def named_model(settings: Settings, argument: str | None) -> str | None:
    """The model that the command line names: as an argument or with -m, which mean the same.

    Raises:
        InvalidValue: they name different ones.
    """
    option = settings.text("model") if settings.values["model"].source == "flag" else None
    if argument is not None and option is not None and argument != option:
        raise failure.usage("two models are named", f"{argument} and -m {option}")
    return argument if argument is not None else option


def choose_model(settings: Settings, named: str | None = None, *, download: bool = True) -> ModelChoice:
    """Finds the model and lets its table in the configuration file speak.

    Where ``pull`` is set a model that is not here is downloaded, unless `download` is false.

    Raises:
        InvalidValue: the name cannot name a model. ModelNotFound: there is no such model. DownloadError: it
        cannot be downloaded.
    """
    if named is None:
        settings.need("model")
    wanted = named if named is not None else settings.text("model")
    fetches = download and settings.flag("pull")
    name, revision = locate.DEMO if wanted is None else wanted, settings.text("revision")
    try:
        found = locate.locate(name, settings.file, settings.environment, revision)
    except ModelNotFound:
        # It may be named in the part of the file that cannot be used.
        settings.need("model", f"{MODELS_KEY}.{wanted}")
        if not fetches or locate.repository_of(name) is None:
            raise
        found = _downloaded(settings, name)
    if found.origin == "cache" and fetches and not is_whole(Path(found.path)):
        found = _downloaded(settings, name)
    if found.alias is not None:
        settings.use_model_table(found.alias)
    return ModelChoice(found.name, found.path, found.origin, by_default=wanted is None)


def _downloaded(settings: Settings, name: str) -> locate.Located:
    """The model after it has been downloaded."""
    from colibri.cli.pull import fetch

    result = fetch(settings, name)
    for note in result.notes:
        console().warn(note)
    return locate.Located(result.repository, result.folder, "cache")


def is_whole(folder: Path) -> bool:
    """Whether the files of a model are all there, as far as its headers say."""
    from colibri.model import inspect

    try:
        inspect(folder)
    except ColibriError as fault:
        return fault.code not in ("model_incomplete", "model_not_found")
    return True


def model_folder(choice: ModelChoice) -> Path:
    """The folder of the model; the embedded demo has one too."""
    from colibri.model_folder import demo_path

    return demo_path() if choice.origin == "demo" else Path(choice.path)


def load_options(settings: Settings) -> dict[str, Any]:
    """The settings of resources as arguments of ``colibri.load`` and ``colibri.plan``."""
    return {
        "ram": settings["ram"],
        "ctx": settings["ctx"],
        "threads": settings["threads"],
        "io": settings["io"],
    }


def open_model(settings: Settings, choice: ModelChoice) -> Model:
    """Loads the model, showing progress; a signal stops it.

    Raises:
        ColibriError: it cannot be loaded.
    """
    from colibri.model import load

    progress = Progress(choose_display(console(), settings.text("progress") or "auto"))
    stopped = threading.Event()

    def on_progress(phase: str, done: int, total: int) -> bool:
        progress.update(phase, done, total, UNITS[phase])
        return not stopped.is_set()

    with interrupts().work(stopped.set):
        try:
            model = load(choice.path, on_progress=on_progress, **load_options(settings))
        finally:
            progress.finish()
    settings.use_model_defaults(asdict(model.sampling_defaults))
    warn_about_memory(model.plan)
    for line in memory_lines(model.plan):
        console().detail(line)
    return model


def warn_about_memory(plan: Plan) -> None:
    """What the plan has to remark, such as a memory that could not be read."""
    for note in plan.notes:
        console().warn(note)


def memory_lines(plan: Plan) -> list[str]:
    """Where the memory goes, and how the weights are read."""
    cached = count_in_words(min(plan.slots, plan.experts_total))
    parts = (
        f"{bytes_in_words(plan.resident_bytes)} resident",
        f"{bytes_in_words(plan.kv_bytes)} KV (ctx {count_in_words(plan.context)})",
        f"{bytes_in_words(plan.scratch_bytes)} scratch",
        f"{bytes_in_words(plan.cache_bytes)} expert cache ({cached} of {count_in_words(plan.experts_total)})",
    )
    return [
        f"RAM {bytes_in_words(plan.projected_peak)}: {' + '.join(parts)}",
        f"reading {plan.io}: {plan.io_reason}",
    ]


def format_in_words(formats: Sequence[str]) -> str:
    """The formats of a role; a role may be stored in more than one."""
    return "+".join(formats)


def describe_model(info: Mapping[str, Any]) -> str:
    """One line of facts about a model, from its ``ModelInfo`` as a dictionary."""
    parts = [one_line(str(info["name"])), f"{info['layers']} layers"]
    if info["moe_layers"]:
        routed = f"{info['moe_layers']} MoE × {info['experts']} experts, top-{info['experts_per_token']}"
        parts[1] += f" ({routed}){' + MTP' if info['has_mtp'] else ''}"
    parts.append(f"{parameters_in_words(info['parameters'])} parameters")
    if "experts" in info["formats"]:
        parts.append(format_in_words(info["formats"]["experts"]))
    parts.append(bytes_in_words(info["container_bytes"]))
    return " · ".join(parts)


def demo_line(plan: Plan) -> str:
    """The line that says the demo is used because no model is configured."""
    size = parameters_in_words(plan.model.parameters)
    return f"colibri {__version__} · no model configured: using the built-in demo ({size} parameters)"


def banner(choice: ModelChoice, plan: Plan, thinking: bool) -> list[str]:
    """The first lines of a chat."""
    thought = "thinking on (/set nothink)" if thinking else "thinking off (/set think)"
    keys = f"{thought} · /help · Ctrl-C stops an answer · Ctrl-D leaves"
    if choice.origin == "demo":
        first = (
            demo_line(plan)
            if choice.by_default
            else demo_line(plan).replace("no model configured: using ", "")
        )
        return [
            first,
            "  It proves the install works; it does not know anything.",
            f"  See experts streamed from disk:  colibri chat {STREAMING}",
            "  A real model:  colibri convert SRC DST, then  colibri chat -m DST",
            f"  {keys}",
        ]
    info = plan.model
    formats = f" · {format_in_words(info.formats['experts'])}" if "experts" in info.formats else ""
    return [
        f"{one_line(choice.name)} · {parameters_in_words(info.parameters)} parameters{formats} · "
        f"{bytes_in_words(info.container_bytes)}",
        *memory_lines(plan),
        keys,
    ]
