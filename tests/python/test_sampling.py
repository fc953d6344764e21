"""Sampling as seen from Python: ranges, defaults, and that every parameter reaches the sampler."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import colibri
import numpy as np
import pytest
from colibri.engine import Sampling
from colibri.sampling import BUILT_IN, FIELDS, LIMITS, ModelDefaults, SamplingParams

PROMPT = "Write a story about a fox."


def outcome(model: colibri.Model, **options: Any) -> tuple[int, ...]:
    return model.generate(PROMPT, **{"max_tokens": 24, **options}).token_ids


# Ranges.


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("repeat_penalty", value) for value in (0, -1, float("nan"), "NaN", 1e9)],
        *[("temperature", value) for value in (-1, float("inf"), float("nan"), "hot", True)],
        *[("top_p", value) for value in (1.5, -0.1, float("nan"))],
        *[("min_p", value) for value in (2, -0.5)],
        *[("top_k", value) for value in (-1, 1.5, 2**31)],
        *[("presence_penalty", value) for value in (2.5, -2.5)],
        ("frequency_penalty", 9),
        *[("seed", value) for value in (-1, 2**64, 0.5)],
        *[("max_tokens", value) for value in (0, -5, 1.5)],
    ],
)
def test_sa_04_values_out_of_range_name_field_and_range(model: colibri.Model, name: str, value: Any) -> None:
    with pytest.raises(colibri.InvalidValue) as caught:
        SamplingParams(**{name: value})
    assert caught.value.code == "invalid_value"
    assert name in caught.value.message
    assert str(LIMITS[name]) in (caught.value.why or "")
    with pytest.raises(ValueError, match=name):
        model.generate("hi", **{name: value})
    # The model goes on working.
    assert outcome(model, temperature=0, max_tokens=2)


@pytest.mark.parametrize("name", [name for name in FIELDS if name not in ("max_tokens", "top_k", "seed")])
@pytest.mark.parametrize("value", [-1000.0, 1000.0, float("nan")])
def test_the_core_checks_the_same_ranges(name: str, value: float) -> None:
    values: dict[str, Any] = dataclasses.asdict(dataclasses.replace(BUILT_IN, seed=1))
    del values["max_tokens"]
    assert Sampling(**values) is not None
    with pytest.raises(Exception, match=name):
        Sampling(**{**values, name: value})
    for edge in (LIMITS[name].low, LIMITS[name].high):
        if not (LIMITS[name].above and edge == LIMITS[name].low):
            assert Sampling(**{**values, name: edge}) is not None


def test_unknown_names_are_type_errors_with_a_suggestion(model: colibri.Model) -> None:
    for name, better in [
        ("temprature", "temperature"),
        ("max_new_tokens", "max_tokens"),
        ("repetition_penalty", "repeat_penalty"),
        ("stops", "stop"),
        ("enable_thinking", "think"),
    ]:
        with pytest.raises(TypeError, match=f"did you mean '{better}'"):
            model.generate("hi", **{name: 1})
        with pytest.raises(TypeError, match=f"did you mean '{better}'"):
            model.stream("hi", **{name: 1})
    with pytest.raises(TypeError, match="unknown parameter 'lora'"):
        model.generate("hi", lora="x")


def test_params_are_a_frozen_value() -> None:
    params = SamplingParams(temperature=0.5)
    assert params == SamplingParams(temperature=0.5)
    assert hash(params) == hash(SamplingParams(temperature=0.5))
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.temperature = 1.0  # type: ignore[misc]


# Defaults.


def test_defaults_of_the_model_folder(demo_hf: Path, model: colibri.Model) -> None:
    defaults = ModelDefaults.read(demo_hf)
    assert defaults.params == SamplingParams(temperature=0.7, top_p=0.95)
    assert defaults.stop_ids == model.stop_ids == {2540, 2547, 2549}
    # An explicit value wins, a missing one is filled in.
    assert outcome(model, seed=5) == outcome(model, seed=5, temperature=0.7, top_p=0.95, top_k=0)
    assert outcome(model, seed=5) != outcome(model, seed=5, temperature=3.0, top_p=1.0)


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({"do_sample": False, "temperature": 0.7}, SamplingParams(temperature=0.0)),
        ({"top_k": 5, "min_p": 0.1}, SamplingParams(top_k=5, min_p=0.1)),
        ({"repetition_penalty": 1.1}, SamplingParams(repeat_penalty=1.1)),
        ({"temperature": None}, SamplingParams()),
    ],
)
def test_generation_config_is_understood(
    tmp_path: Path, generation: dict[str, Any], expected: SamplingParams
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert ModelDefaults.read(tmp_path).params == expected


def test_end_tokens_of_both_files_are_joined(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 4]}')
    (tmp_path / "config.json").write_text('{"eos_token_id": 5}')
    assert ModelDefaults.read(tmp_path).stop_ids == {3, 4, 5}


@pytest.mark.parametrize(
    "text",
    ['{"temperature": "hot"}', '{"eos_token_id": "x"}', '{"eos_token_id": [-1]}', "[]", "{", '{"top_p": 7}'],
)
def test_damaged_generation_config_is_an_error_naming_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(colibri.ModelError, match=r"generation_config\.json") as caught:
        ModelDefaults.read(tmp_path)
    assert caught.value.code == "model_corrupt"


# What the sampler does.


def test_sa_01_top_k_zero_and_a_huge_top_k_are_off(model: colibri.Model) -> None:
    off = outcome(model, seed=3, temperature=1.5, top_p=1.0, top_k=0)
    assert off == outcome(model, seed=3, temperature=1.5, top_p=1.0, top_k=10_000)
    assert off != outcome(model, seed=3, temperature=1.5, top_p=1.0, top_k=1)


def only(*chosen: float) -> Any:
    """A processor that replaces the row by the given logits, every other token excluded."""

    def process(tokens: Any, logits: Any) -> None:
        logits[:] = -np.inf
        logits[: len(chosen)] = chosen

    return process


def test_sa_01_draws_follow_the_probabilities(model: colibri.Model) -> None:
    result = model.generate(
        tokens=[300],
        max_tokens=1000,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        seed=1,
        logits_processors=[only(0.0, 5.0, 1.0)],
    )
    counts = np.bincount(result.tokens, minlength=3)
    assert counts[:3].sum() == 1000
    assert 950 <= counts[1] <= 990
    assert counts[0] < 30


def test_sa_03_repeat_penalty_lowers_logits_of_both_signs(model: colibri.Model) -> None:
    rows: list[Any] = []
    seen = [300, 301]

    def keep(tokens: Any, logits: Any) -> None:
        rows.append(logits.copy())

    for penalty in (1.0, 2.0):
        model.generate(
            tokens=seen, max_tokens=1, temperature=0, repeat_penalty=penalty, logits_processors=[keep]
        )
    plain, lowered = rows
    for token in seen:
        assert lowered[token] == (plain[token] / 2 if plain[token] > 0 else plain[token] * 2)
        assert lowered[token] <= plain[token]
    others = np.delete(np.arange(plain.size), seen)
    assert np.array_equal(plain[others], lowered[others])


def test_penalties_count_prompt_and_answer(model: colibri.Model) -> None:
    rows: list[Any] = []

    def keep(tokens: Any, logits: Any) -> None:
        rows.append(logits.copy())

    for options in ({}, {"presence_penalty": 0.5, "frequency_penalty": 0.25}):
        model.generate(
            tokens=[300, 300, 301], max_tokens=1, temperature=0, logits_processors=[keep], **options
        )
    difference = rows[0] - rows[1]
    assert difference[300] == pytest.approx(1.0, abs=1e-5)
    assert difference[301] == pytest.approx(0.75, abs=1e-5)
    assert np.count_nonzero(difference) == 2


@pytest.mark.parametrize(("top_p", "expected"), [(0.0, {0}), (1e-9, {0}), (0.5, {0, 1})])
def test_sa_06_the_nucleus_is_never_empty(model: colibri.Model, top_p: float, expected: set[int]) -> None:
    result = model.generate(
        tokens=[300],
        max_tokens=60,
        temperature=1.0,
        top_p=top_p,
        top_k=0,
        seed=4,
        logits_processors=[only(0.0, 0.0, 0.0, 0.0)],
    )
    assert set(result.token_ids) == expected


def test_sa_07_only_kept_tokens_are_drawn(model: colibri.Model) -> None:
    rows: list[Any] = []

    def keep(tokens: Any, logits: Any) -> None:
        rows.append(np.argsort(-logits, kind="stable")[:20])

    result = model.generate(
        PROMPT, max_tokens=200, temperature=100.0, top_p=1.0, top_k=20, seed=9, logits_processors=[keep]
    )
    chosen = [*result.token_ids, *([result.stop_token] if result.stop_token is not None else [])]
    assert len(chosen) == len(rows)
    assert all(token in row for token, row in zip(chosen, rows, strict=True))


def test_sa_09_foreign_environment_variables_have_no_effect(
    model: colibri.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = outcome(model, seed=2)
    for name, value in [("TEMP", "/var/tmp"), ("TMPDIR", "/x"), ("TEMPERATURE", "abc"), ("SEED", "9")]:
        monkeypatch.setenv(name, value)
    assert outcome(model, seed=2) == before


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ({"top_p": 0.01, "temperature": 5, "seed": 1}, {"top_p": 1, "temperature": 5, "seed": 1}),
        ({"top_k": 1, "temperature": 5, "seed": 1}, {"top_k": 0, "temperature": 5, "seed": 1, "top_p": 1}),
        ({"min_p": 1.0, "temperature": 5, "seed": 1}, {"min_p": 0, "temperature": 5, "seed": 1, "top_p": 1}),
        ({"temperature": 0}, {"temperature": 5, "seed": 1, "top_p": 1}),
        ({"temperature": 5, "top_p": 1, "seed": 1}, {"temperature": 5, "top_p": 1, "seed": 2}),
        ({"temperature": 0}, {"temperature": 0, "repeat_penalty": 50}),
        ({"temperature": 0}, {"temperature": 0, "presence_penalty": 2}),
        ({"temperature": 0}, {"temperature": 0, "frequency_penalty": 2}),
        ({"temperature": 0, "max_tokens": 3}, {"temperature": 0, "max_tokens": 4}),
        ({"temperature": 0, "stop": "a"}, {"temperature": 0}),
    ],
)
def test_sa_10_every_option_reaches_the_sampler(
    model: colibri.Model, low: dict[str, Any], high: dict[str, Any]
) -> None:
    assert outcome(model, **low) != outcome(model, **high)


def test_sa_10_narrow_sampling_equals_greedy(model: colibri.Model) -> None:
    greedy = outcome(model, temperature=0)
    for options in ({"top_p": 0.0}, {"top_k": 1}, {"min_p": 1.0}):
        assert outcome(model, temperature=5, seed=1, **options) == greedy


def test_a_seed_repeats_an_answer_and_is_reported(model: colibri.Model) -> None:
    first = model.generate(PROMPT, temperature=1.5, top_p=1.0, max_tokens=24)
    again = model.generate(PROMPT, temperature=1.5, top_p=1.0, max_tokens=24, seed=first.stats.seed)
    assert first.token_ids == again.token_ids


def test_random_numbers_depend_on_the_position_alone(model: colibri.Model) -> None:
    # Continuing from the tokens so far draws the same as never having stopped.
    options: dict[str, Any] = {"temperature": 1.5, "top_p": 1.0, "seed": 11}
    whole = model.generate(tokens=[2542, 2544, 300], max_tokens=12, **options).token_ids
    half = model.generate(tokens=[2542, 2544, 300, *whole[:6]], max_tokens=6, **options).token_ids
    assert whole[6:] == half
