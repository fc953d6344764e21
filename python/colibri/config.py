"""Settings: what can be set, where a value comes from, and the only reader of the environment.

The table ``colibri.settings.SETTINGS`` generates the flags of the command line, their ``COLIBRI_*``
twins, the keys of the configuration file and ``docs/settings.md``. A value is looked up in a fixed order:
flag, environment, the ``[models.NAME]`` table of the chosen model, the top of the configuration file, the
model's own ``generation_config.json``, built-in default.

Refuses: values of the wrong kind or out of range, naming the place they came from; a command fails on those
it needs, and only on those. A variable ``COLIBRI_*`` or a key of the file that is no setting is not an
error but a warning with the nearest name. There is no configuration file in the working folder: a file that
comes with a project must not change how much memory is used.

This module imports nothing heavy: ``colibri --help`` must answer at once.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from colibri.errors import ColibriError, error, shown
from colibri.files import read_file, reason, user_path
from colibri.setting_kinds import PATH
from colibri.settings import (
    BY_KEY,
    BY_NAME,
    BY_VARIABLE,
    MODEL_KEYS,
    MODELS_KEY,
    PREFIX,
    SEARCH_KEY,
    SETTINGS,
    Setting,
)

# The largest configuration file that is read, in bytes.
FILE_LIMIT = 1 << 20
# Where a value may come from, the one with most weight first.
_SOURCES = ("flag", "environment", "file", "model", "default")


@dataclass(frozen=True, slots=True)
class Value:
    """An effective value and where it came from."""

    value: object
    # One of _SOURCES.
    source: str
    # The flag, the variable, the file or the note shown to people.
    origin: str


class Environment:
    """The process environment, read in one place."""

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        self._variables: Mapping[str, str] = dict(os.environ) if variables is None else dict(variables)

    def get(self, name: str) -> str | None:
        """The variable, or None when it is unset or empty."""
        return self._variables.get(name) or None

    def own(self) -> dict[str, str]:
        """Every variable with the prefix of this program."""
        return {name: value for name, value in self._variables.items() if name.startswith(PREFIX)}

    def _folder(self, variable: str, fallback: Path) -> Path:
        text = self.get(variable)
        # The XDG rules: a relative path is not valid and is ignored.
        return Path(text) if text and Path(text).is_absolute() else fallback

    @property
    def home(self) -> Path:
        """The user's home folder."""
        text = self.get("HOME")
        return Path(text) if text else Path(os.path.expanduser("~"))

    @property
    def config_file(self) -> Path:
        """Where the configuration file is looked for, whether it exists or not."""
        return self._folder("XDG_CONFIG_HOME", self.home / ".config") / "colibri" / "config.toml"

    @property
    def history_file(self) -> Path:
        """Where the lines typed into a chat are kept."""
        return self._folder("XDG_STATE_HOME", self.home / ".local" / "state") / "colibri" / "history"

    @property
    def hugging_face_cache(self) -> Path:
        """The folder in which the Hugging Face tools keep what they downloaded."""
        for variable, tail in (("HF_HUB_CACHE", ""), ("HF_HOME", "hub")):
            text = self.get(variable)
            if text:
                return user_path(text) / tail
        return self._folder("XDG_CACHE_HOME", self.home / ".cache") / "huggingface" / "hub"

    @property
    def no_color(self) -> bool:
        """NO_COLOR is set, or the terminal cannot do it."""
        return self.get("NO_COLOR") is not None or self.get("TERM") == "dumb"

    @property
    def force_color(self) -> bool:
        """CLICOLOR_FORCE asks for colour even where standard error is not a terminal."""
        return self.get("CLICOLOR_FORCE") not in (None, "0")

    @property
    def dumb_terminal(self) -> bool:
        """The terminal cannot move its cursor."""
        return self.get("TERM") == "dumb"


def shorten(path: Path, environment: Environment) -> str:
    """The path with the home folder written as ``~``."""
    try:
        return "~/" + path.relative_to(environment.home).as_posix()
    except ValueError:
        return str(path)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The most similar of ``names``, if any is similar."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, list(names), n=1, cutoff=0.6)), None)


def _suggest(what: str, name: str, names: Iterable[str], hint: str = "") -> str:
    guess = nearest(name, names)
    return f"{what} is not a setting." + (f" Did you mean {guess}?" if guess else f" {hint or _SEE}")


def parse(setting: Setting, value: object, place: str) -> object:
    """The value in the setting's own type.

    Raises:
        InvalidValue: naming ``place``, the flag, variable or key the value came from.
    """
    try:
        if setting.repeated:
            values = value if isinstance(value, list | tuple) else (value,)
            return tuple(setting.kind.parse(item) for item in values)
        return setting.kind.parse(value)
    except ValueError as fault:
        given = str(value).lower() if isinstance(value, bool) else shown(value)
        raise error(
            "invalid_value",
            f"{place} is {given}",
            str(fault),
            f"set it to {setting.kind.example}, or leave it out",
        ) from None


# The fault of a file as a whole.
WHOLE = ""
_SEE = "See: colibri config show"
_TOP_LEVEL = "Settings stand at the top of the file, above the first [table]."


@dataclass(slots=True)
class ConfigFile:
    """The configuration file, checked. An absent file is an empty one."""

    path: Path
    values: dict[str, object] = field(default_factory=dict)
    # Name in [models] to its table: "path" and settings for that model.
    models: dict[str, dict[str, object]] = field(default_factory=dict)
    models_dir: tuple[Path, ...] = ()
    warnings: list[str] = field(default_factory=list)
    exists: bool = False
    # What cannot be used, by the setting it concerns: its name, [models.NAME], or WHOLE for the file itself.
    faults: dict[str, ColibriError] = field(default_factory=dict)

    @classmethod
    def read(cls, environment: Environment) -> ConfigFile:
        """Reads and checks the file; what cannot be used is kept in ``faults``, all else is taken."""
        result = cls(environment.config_file)
        try:
            content = read_file(result.path, FILE_LIMIT)
        except (FileNotFoundError, NotADirectoryError):
            return result
        except OSError as fault:
            result.faults[WHOLE] = error(
                "invalid_value", f"cannot read {result.path}", reason(fault), "correct or remove that file"
            )
            return result
        import tomllib

        result.exists = True
        try:
            # A byte order mark is no part of the text.
            table = tomllib.loads(content.decode("utf-8-sig"))
        except (ValueError, RecursionError) as fault:
            why = "it is nested too deeply" if isinstance(fault, RecursionError) else str(fault)
            result.faults[WHOLE] = error(
                "invalid_value", f"{result.path} is not valid TOML", why, "colibri config edit"
            )
            return result
        for key, value in table.items():
            result._take(key, value)
        return result

    def _take(self, key: str, value: object) -> None:
        if key == MODELS_KEY and isinstance(value, dict):
            for name, entry in value.items():
                with self._kept(f"{MODELS_KEY}.{name}"):
                    self.models[name] = self._model(name, entry)
        elif key == MODELS_KEY:
            self.faults["model"] = error(
                "invalid_value",
                f"{MODELS_KEY} in {self.path} is no table",
                "each model has a table of its own",
                "write [models.NAME] and under it  path = ...",
            )
        elif key == SEARCH_KEY:
            with self._kept("model"):
                self.models_dir = self._folders(value)
        elif key in BY_KEY:
            with self._kept(BY_KEY[key].name):
                self.values[BY_KEY[key].name] = parse(BY_KEY[key], value, f"{key} in {self.path}")
        else:
            shown, hint = (key, "") if not isinstance(value, dict) else (f"[{key}]", _TOP_LEVEL)
            self.warnings.append(
                _suggest(f"{shown} in {self.path}", key, [*BY_KEY, SEARCH_KEY, MODELS_KEY], hint)
            )

    @contextlib.contextmanager
    def _kept(self, name: str) -> Iterator[None]:
        """Keeps an error raised in the block as the fault of a setting."""
        try:
            yield
        except ColibriError as fault:
            self.faults[name] = fault

    def _folders(self, value: object) -> tuple[Path, ...]:
        folders = value if isinstance(value, list) else [value]
        try:
            return tuple(user_path(str(PATH.parse(item))) for item in folders)
        except ValueError as fault:
            place = f"{SEARCH_KEY} in {self.path}"
            raise error("invalid_value", f"{place} is no list of folders", str(fault), _SEE) from None

    def _model(self, name: str, entry: object) -> dict[str, object]:
        place = f'[models."{name}"] in {self.path}'
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
            raise error(
                "invalid_value",
                f"{place} has no path",
                "each model needs the folder that holds it",
                'add the line  path = "/folder/of/the/model"',
            )
        taken: dict[str, object] = {"path": user_path(entry["path"])}
        for key, value in entry.items():
            if key in BY_KEY and key not in MODEL_KEYS:
                self.warnings.append(f"{key} in {place} cannot be set for one model. {_TOP_LEVEL}")
            elif key not in MODEL_KEYS:
                self.warnings.append(_suggest(f"{key} in {place}", key, MODEL_KEYS))
            elif key != "path":
                taken[BY_KEY[key].name] = parse(BY_KEY[key], value, f"{key} in {place}")
        return taken


@dataclass(slots=True)
class Settings:
    """Effective settings of one run."""

    values: dict[str, Value]
    file: ConfigFile
    environment: Environment
    warnings: list[str] = field(default_factory=list)
    # What the environment and the file say and cannot be used, where nobody with more weight spoke; by the
    # names of ``ConfigFile.faults``. The default stands in the place of such a value.
    faults: dict[str, ColibriError] = field(default_factory=dict)

    def need(self, *names: str) -> None:
        """Raises what is wrong with these settings, or with the file as a whole."""
        for name in (WHOLE, *names):
            if name in self.faults:
                raise self.faults[name]

    @property
    def thinking(self) -> bool:
        """Whether the model is asked to reason: said, or implied by an effort that has no less weight."""
        think, effort = self.values["think"], self.values["reasoning_effort"]
        if effort.value is not None and _SOURCES.index(effort.source) < _SOURCES.index(think.source):
            return True
        return bool(think.value)

    def __getitem__(self, name: str) -> object:
        return self.values[name].value

    def given(self, name: str) -> bool:
        """The user said something about this setting, anywhere."""
        return self.values[name].source in ("flag", "environment", "file")

    def text(self, name: str) -> str | None:
        """A text setting."""
        value = self[name]
        return None if value is None else str(value)

    def flag(self, name: str) -> bool:
        """A yes or no setting."""
        return bool(self[name])

    def integer(self, name: str) -> int | None:
        """A whole number, or None where it is unset."""
        value = self[name]
        return value if isinstance(value, int) else None

    def number(self, name: str) -> float | None:
        """A number, or None where it is unset."""
        value = self[name]
        return float(value) if isinstance(value, int | float) else None

    def texts(self, name: str) -> tuple[str, ...]:
        """A repeated text setting."""
        value = self[name]
        return tuple(str(item) for item in value) if isinstance(value, tuple) else ()

    def use_model_table(self, name: str) -> None:
        """Lets the ``[models.NAME]`` table of the file speak where no flag and no variable did."""
        place = f"{shorten(self.file.path, self.environment)} [models.{name}]"
        for key, value in self.file.models.get(name, {}).items():
            if key in self.values and self.values[key].source in ("file", "default"):
                self.values[key] = Value(value, "file", place)

    def use_model_defaults(self, defaults: Mapping[str, object]) -> None:
        """Lets the model's own ``generation_config.json`` speak where nobody else did.

        Args:
            defaults: field of the sampling parameters to the model's value, None where it says nothing.
        """
        for setting in SETTINGS:
            value = defaults.get(setting.parameter) if setting.parameter else None
            if value is not None and self.values[setting.name].source == "default":
                self.values[setting.name] = Value(value, "model", "model generation_config.json")

    def sampling(self) -> dict[str, object]:
        """The sampling parameters the user set, by field; the rest is left to the model."""
        return {s.parameter: self[s.name] for s in SETTINGS if s.parameter and self.given(s.name)}


def resolve(given: Mapping[str, object], environment: Environment, file: ConfigFile) -> Settings:
    """The effective settings: ``given`` are the parsed flags."""
    values: dict[str, Value] = {}
    faults = {name: fault for name, fault in file.faults.items() if name not in BY_NAME}
    own = environment.own()
    place = shorten(file.path, environment)
    for setting in SETTINGS:
        name = setting.name
        values[name] = Value(setting.default, "default", "default")
        if given.get(name) not in (None, ()):
            values[name] = Value(given[name], "flag", setting.flag)
        elif setting.key and own.get(setting.variable):
            try:
                value = parse(setting, own[setting.variable], setting.variable)
                values[name] = Value(value, "environment", setting.variable)
            except ColibriError as fault:
                faults[name] = fault
        elif name in file.faults:
            faults[name] = file.faults[name]
        elif name in file.values:
            values[name] = Value(file.values[name], "file", place)
    warnings = [_suggest(name, name, BY_VARIABLE) for name in sorted(own) if name not in BY_VARIABLE]
    return Settings(values, file, environment, warnings + file.warnings, faults)


def load(given: Mapping[str, object] | None = None, environment: Environment | None = None) -> Settings:
    """Reads the environment and the file and resolves every setting."""
    environment = environment or Environment()
    return resolve(given or {}, environment, ConfigFile.read(environment))


def encoding_is_unicode() -> bool:
    """Standard error can show any character."""
    name = (getattr(sys.stderr, "encoding", None) or "").lower().replace("-", "").replace("_", "")
    return name.startswith("utf")
