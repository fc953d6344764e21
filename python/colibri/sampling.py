"""Sampling parameters and the defaults a model brings along.

Owns the value object `SamplingParams`, the ranges of its fields and the reading of `generation_config.json`.
Refuses values outside their range and unknown names. What must hold: a parameter that is accepted reaches the
sampler; a field left at None takes the model's default, and the built-in default where the model has none.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypedDict

from colibri.arguments import INTEGER_MAX, Range
from colibri.errors import ColibriError, error, shown
from colibri.json_file import read_json_object


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen. None means: what the model's folder says, else the built-in default.

    The order is penalties, logits processors, grammar, temperature, top-k, top-p, min-p. Temperature 0 is
    greedy.

    Attributes:
        temperature: divides the logits; 0 takes the likeliest token. Default 1.0.
        top_p: keeps the smallest set of tokens whose probabilities reach this sum; 1 is off. Default 0.95.
        top_k: keeps this many tokens; 0 is off. Default 0.
        min_p: keeps tokens at least this likely relative to the likeliest; 0 is off. Default 0.
        repeat_penalty: divides positive and multiplies negative logits of tokens already in the context; 1 is
            off.
        presence_penalty: subtracted from the logits of tokens already in the context.
        frequency_penalty: subtracted once per occurrence in the context.
        max_tokens: the most tokens one answer may have. Default 1024.
        seed: random numbers depend on the seed and the position only; None draws a seed, which the statistics
            report.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_tokens: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, limits in LIMITS.items():
            value = getattr(self, name)
            if value is not None:
                # Kept as a Python number, whatever library it comes from.
                object.__setattr__(self, name, limits.check(name, value))

    def override(self, names: Mapping[str, Any]) -> SamplingParams:
        """Returns a copy with the given fields replaced; None leaves a field as it is.

        Raises:
            TypeError: a name is no field; the message suggests the nearest one.
            InvalidValue: a value is outside its range.
        """
        check_names(names)
        given = {name: value for name, value in names.items() if value is not None}
        return dataclasses.replace(self, **given) if given else self

    def or_else(self, other: SamplingParams) -> SamplingParams:
        """Returns a copy whose None fields are taken from `other`."""
        missing = {
            name: getattr(other, name)
            for name in FIELDS
            if getattr(self, name) is None and getattr(other, name) is not None
        }
        return dataclasses.replace(self, **missing) if missing else self


class SamplingOverrides(TypedDict, total=False):
    """The fields of `SamplingParams` as keyword arguments."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repeat_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    max_tokens: int | None
    seed: int | None


LIMITS: Final[dict[str, Range]] = {
    "temperature": Range(0.0, 100.0),
    "top_p": Range(0.0, 1.0),
    "top_k": Range(0, INTEGER_MAX, whole=True),
    "min_p": Range(0.0, 1.0),
    "repeat_penalty": Range(0.0, 100.0, above=True),
    "presence_penalty": Range(-2.0, 2.0),
    "frequency_penalty": Range(-2.0, 2.0),
    "max_tokens": Range(1, INTEGER_MAX, whole=True),
    "seed": Range(0, 2**64 - 1, whole=True),
}
"""The range of every field; the core checks the same ranges at its own door."""

FIELDS: Final = tuple(LIMITS)

BUILT_IN: Final = SamplingParams(
    temperature=1.0,
    top_p=0.95,
    top_k=0,
    min_p=0.0,
    repeat_penalty=1.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    max_tokens=1024,
)
"""What holds where neither the caller nor the model says anything."""

# Names other libraries use for the same thing; difflib alone would not find them.
_KNOWN_AS: Final = {
    "max_new_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "max_length": "max_tokens",
    "temp": "temperature",
    "repetition_penalty": "repeat_penalty",
    "random_seed": "seed",
    "n_ctx": "ctx",
    "enable_thinking": "think",
    "stopping_criteria": "stop",
    "functions": "tools",
    "function_call": "tool_choice",
}

# Names other libraries use for what a Grammar says -> the constructor that takes their value.
_AS_GRAMMAR: Final = {
    "json_schema": "from_json_schema",
    "response_format": "from_json_schema",
    "response_model": "from_json_schema",
    "output_type": "from_json_schema",
    "schema": "from_json_schema",
    "guided_json": "from_json_schema",
    "format": "from_json_schema",
    "guided_regex": "from_regex",
    "regex": "from_regex",
    "guided_grammar": "from_gbnf",
    "gbnf": "from_gbnf",
    "grammar_file": "from_file",
}


def check_names(names: Iterable[str], allowed: Iterable[str] = FIELDS) -> None:
    """Raises `TypeError` with a suggestion for the first name that is not allowed."""
    allowed = tuple(allowed)
    for name in names:
        if name in allowed:
            continue
        maker = _AS_GRAMMAR.get(name)
        if maker is not None and "grammar" in allowed:
            raise TypeError(f"unknown parameter {name!r}; pass grammar=Grammar.{maker}(...)")
        guess = _KNOWN_AS.get(name)
        near = [guess] if guess else difflib.get_close_matches(name, allowed, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(allowed)}"
        raise TypeError(f"unknown parameter {name!r}{hint}")


@dataclasses.dataclass(frozen=True, slots=True)
class ModelDefaults:
    """What a model folder says about generation.

    Attributes:
        params: the defaults of `generation_config.json`; None where it is silent. `do_sample: false` is
            temperature 0.
        stop_ids: the end tokens of `generation_config.json` and `config.json` together.
    """

    params: SamplingParams
    stop_ids: frozenset[int]

    @staticmethod
    def read(directory: Path) -> ModelDefaults:
        """Reads both files of a model folder; a missing file says nothing.

        Raises:
            ModelError: a file is not a JSON object, or a value has the wrong kind.
        """
        generation = read_json_object(directory / "generation_config.json")
        config = read_json_object(directory / "config.json")
        stop_ids = _token_ids(directory / "generation_config.json", generation.get("eos_token_id"))
        stop_ids |= _token_ids(directory / "config.json", config.get("eos_token_id"))
        return ModelDefaults(_params(directory / "generation_config.json", generation), stop_ids)


# generation_config.json name -> our field.
_GENERATION_CONFIG: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repeat_penalty",
}


def _params(path: Path, generation: Mapping[str, Any]) -> SamplingParams:
    named = {field: generation.get(name) for name, field in _GENERATION_CONFIG.items()}
    given = {field: value for field, value in named.items() if value is not None}
    # The file's own word for "greedy"; the other values are then without effect.
    if generation.get("do_sample") is False:
        given["temperature"] = 0.0
    try:
        return SamplingParams(**given)
    except ColibriError as fault:
        raise error(
            "model_corrupt",
            f"{path} holds a value that cannot be used",
            fault.why,
            f"correct or remove {path}",
        ) from None


def _token_ids(path: Path, value: object) -> frozenset[int]:
    if value is None:
        return frozenset()
    ids = value if isinstance(value, list) else [value]
    if any(isinstance(item, bool) or not isinstance(item, int) or not 0 <= item < 2**32 for item in ids):
        raise error(
            "model_corrupt",
            f"eos_token_id in {path} is {shown(value)}",
            "it must be a token id or a list of token ids",
            f"take {path.name} from the original model",
        )
    return frozenset(ids)
