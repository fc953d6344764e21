"""Equality with the reference implementation in f32 arithmetic: logits, losses, greedy tokens.

The Rust oracle test compares everything on the way to them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import colibri
import numpy as np
import pytest
from safetensors.numpy import load_file

FIXTURES = ("glm_tiny", "glm_sparse", "glm_groups", "glm_tiny_fp8")
# Largest difference of a logit or a loss, in nats.
TOLERANCE = 2e-4


class Fixture:
    """A checkpoint, opened in f32 arithmetic, with its reference."""

    def __init__(self, folder: Path, model: colibri.Model) -> None:
        self.model = model
        self.arrays = load_file(folder / "ref" / "reference.safetensors")
        self.prompts: list[dict[str, Any]] = json.loads((folder / "ref" / "reference.json").read_text())[
            "prompts"
        ]


@pytest.fixture(scope="module", params=FIXTURES)
def fixture(request: pytest.FixtureRequest, oracle: Path) -> Iterator[Fixture]:
    folder = oracle / request.param
    with colibri.load(folder, numerics="f32", ram="1GB") as model:
        yield Fixture(folder, model)


def losses(logits: Any, ids: Any) -> Any:
    """-log p(next id) at every position but the last."""
    rows = logits[:-1].astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    return np.log(np.exp(rows).sum(axis=1)) - rows[np.arange(len(rows)), ids[1:]]


def test_logits_and_losses(fixture: Fixture) -> None:
    for index in range(len(fixture.prompts)):
        ids = fixture.arrays[f"p{index}.ids"].ravel()
        logits = fixture.model.logits(ids)
        expected = fixture.arrays[f"p{index}.logits"].reshape(logits.shape)
        assert np.abs(logits - expected).max() <= TOLERANCE
        assert (logits.argmax(axis=1) == expected.argmax(axis=1)).all()
        reference = fixture.arrays[f"p{index}.nll"].ravel()
        assert (
            np.abs(losses(logits, ids)[: len(reference)] - reference[: len(ids) - 1]).max(initial=0.0)
            <= TOLERANCE
        )


def test_greedy_tokens(fixture: Fixture, capsys: pytest.CaptureFixture[str]) -> None:
    near_ties = 0
    for index, prompt in enumerate(fixture.prompts):
        greedy = prompt["greedy"]
        expected = greedy["ids"]
        near_ties += sum(margin < TOLERANCE for margin in greedy["top2_margin"])
        ids = [int(token) for token in fixture.arrays[f"p{index}.ids"].ravel()]
        assert len(expected) == 24
        assert continuation(fixture.model, ids, len(expected)) == expected
    with capsys.disabled():
        print(f"\n{fixture.model.info.name}: {near_ties} near-ties below {TOLERANCE}, none skipped")


def continuation(model: colibri.Model, ids: list[int], length: int) -> list[int]:
    """The greedy tokens; the reference goes on past end tokens, so this does too."""
    chosen: list[int] = []
    while len(chosen) < length:
        result = model.generate(tokens=[*ids, *chosen], temperature=0, max_tokens=length - len(chosen))
        chosen += result.token_ids
        if result.stop_token is not None:
            chosen.append(result.stop_token)
    return chosen[:length]


def test_the_default_arithmetic_of_a_float_checkpoint_is_close(oracle: Path) -> None:
    # A float checkpoint has f32 arithmetic on stored weights in every mode.
    folder = oracle / "glm_tiny"
    with colibri.load(folder, ram="1GB") as model, colibri.load(folder, numerics="f32", ram="1GB") as exact:
        ids = list(range(5, 25))
        assert np.abs(model.logits(ids) - exact.logits(ids)).max() <= TOLERANCE
