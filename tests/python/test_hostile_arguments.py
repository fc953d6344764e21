"""Values of the Python API that are nearly right: numbers of numpy, sets of tokens, endless arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import colibri
import numpy as np
import pytest
from colibri.errors import invalid_value

PROMPT = "Write a story about a fox."
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 4}


@pytest.mark.parametrize(
    "options",
    [
        {"raw": 5}, {"raw": "no"}, {"stop": "\ud800"}, {"stop": ["a", "b\udfff"]}, {"timeout": 1e19},
        {"timeout": 1e308}, {"timeout": float("inf")}, {"timeout": 10**5000}, {"timeout": 1e-400},
        {"seed": 10**5000}, {"temperature": 10**5000}, {"max_tokens": np.bool_(True)}, {"top_p": True},
        {"max_tokens": np.float32(3)}, {"temperature": np.float32("nan")}, {"temperature": 1j},
        {"on_progress": 5}, {"think": 5}, {"cancel": 5}, {"wait": 0},
    ],
    ids=lambda options: next(iter(options)),
)  # fmt: skip
def test_wrong_values_of_a_generation_are_named(model: colibri.Model, options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(colibri.InvalidValue, match=name) as caught:
        model.generate(PROMPT, **options)
    assert len(str(caught.value)) < 800


@pytest.mark.parametrize(
    "options",
    [
        {"threads": True}, {"threads": 1.5}, {"threads": 2**31}, {"threads": 10**5000}, {"ram": None},
        {"ram": 1e9}, {"ram": 2**63}, {"ram": b"1GB"}, {"ctx": 2**31}, {"ctx": True}, {"ctx": [64]},
        {"kernels": None}, {"on_progress": 5},
    ],
    ids=lambda options: next(iter(options)),
)  # fmt: skip
def test_wrong_values_of_loading_are_named(demo_hf: Path, options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(colibri.InvalidValue, match=name):
        colibri.load(demo_hf, **options)


def test_wrong_values_of_converting_are_named(demo_hf: Path, tmp_path: Path) -> None:
    for workers in (-1, True, 2.0, 10**5000):
        with pytest.raises(colibri.InvalidValue, match="workers"):
            colibri.convert(demo_hf, tmp_path / "out", workers=workers)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "path", ["\ud800", "demo\0", b"demo", 5, ["demo"], ""], ids=lambda tokens: type(tokens).__name__
)
def test_what_is_no_path_is_named(path: Any) -> None:
    for use in (colibri.load, colibri.plan, colibri.inspect):
        with pytest.raises(colibri.InvalidValue, match="path"):
            use(path)


def test_numbers_of_numpy_are_numbers(model: colibri.Model, demo_hf: Path) -> None:
    expected = model.generate(PROMPT, temperature=0.5, seed=7, max_tokens=4).token_ids
    options: dict[str, Any] = {
        "temperature": np.float32(0.5),
        "max_tokens": np.int64(4),
        "seed": np.uint64(7),
        "timeout": np.float64(60),
    }
    assert model.generate(PROMPT, **options).token_ids == expected
    params = colibri.SamplingParams(max_tokens=np.int64(4), temperature=np.float32(0.5))  # type: ignore[arg-type]
    assert (type(params.max_tokens), type(params.temperature)) == (int, float)
    sizes: dict[str, Any] = {"ram": np.int64(10**9), "ctx": np.int32(64), "threads": np.int8(1)}
    assert colibri.plan(demo_hf, **sizes).context == 64


NOT_TOKENS: list[Any] = [
    {1, 2}, {1: 2}, b"abc", bytearray(b"abc"), memoryview(b"abc"), "abc", 5, None, iter([1, 2]),
    [True, False], [1.0, 2.0], [[1], [2]], ["1"],
    np.array([1.0, 2.0]), np.array([True]), np.array(5), np.array([[1, 2]]), np.array(["a"]),
    np.ma.array([1, 2], mask=[0, 1]),
]  # fmt: skip


@pytest.mark.parametrize("tokens", NOT_TOKENS, ids=lambda tokens: type(tokens).__name__)
def test_what_is_no_list_of_tokens_is_refused(model: colibri.Model, tokens: Any) -> None:
    uses: list[Callable[[], object]] = [lambda: model.logits(tokens)]
    if tokens is not None:
        uses.append(lambda: model.generate(tokens=tokens, max_tokens=1))
    for use in uses:
        with pytest.raises(colibri.InvalidValue, match="tokens"):
            use()


@pytest.mark.parametrize(
    "tokens",
    [
        [5, 6, 7], (5, 6, 7), range(5, 8), np.array([5, 6, 7]), np.array([5, 6, 7], dtype=">i4"),
        np.array([5, 6, 7], dtype=np.uint8), np.arange(5, 11)[:3], np.array([7, 6, 5])[::-1],
        [np.int64(5), np.int8(6), 7],
    ],
    ids=lambda tokens: type(tokens).__name__,
)  # fmt: skip
def test_every_list_of_integers_is_one_of_tokens(model: colibri.Model, tokens: Any) -> None:
    np.testing.assert_array_equal(model.logits(tokens), model.logits([5, 6, 7]))


def test_a_length_that_no_context_has_is_refused_unread(model: colibri.Model) -> None:
    endless = np.broadcast_to(np.int64(1), 10**12)
    uses: list[Callable[[], object]] = [
        lambda: model.logits(endless),
        lambda: model.generate(tokens=endless),
        lambda: model.logits(range(10**12)),
    ]
    for use in uses:
        with pytest.raises(colibri.ContextError, match="1,000,000,000,000"):
            use()


@pytest.mark.parametrize("value", [np.inf, np.nan, -np.inf])
def test_a_processor_that_leaves_no_largest_logit_is_an_error(model: colibri.Model, value: float) -> None:
    def one(_tokens: Any, logits: Any) -> None:
        logits[7] = value

    def all_of_them(_tokens: Any, logits: Any) -> None:
        logits[:] = value

    for processor in (one, all_of_them):
        if processor is one and value == -np.inf:
            continue
        with pytest.raises(colibri.EngineError) as caught:
            model.generate(PROMPT, logits_processors=[processor], **GREEDY)
        assert caught.value.code == "non_finite"
        assert "logits_processors" in caught.value.message
    assert model.generate(PROMPT, **GREEDY).token_ids


def test_a_processor_may_forbid_tokens(model: colibri.Model) -> None:
    def only(_tokens: Any, logits: Any) -> None:
        kept = logits[300]
        logits[:] = -np.inf
        logits[300] = kept

    assert set(model.generate(PROMPT, logits_processors=[only], **GREEDY).token_ids) == {300}


def test_a_value_that_cannot_be_written_is_named_by_its_kind() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError

    assert invalid_value("seed", 10**5000, "small").message == "seed is a int"
    assert invalid_value("seed", Silent(), "small").message == "seed is a Silent"
    assert len(invalid_value("stop", "x" * 10**6, "short").message) < 100
