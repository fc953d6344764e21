"""Token-exact text of the embedded model: greedy answers, and how close the shipped container is to them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import colibri
import numpy as np
import pytest

# Loss of the bf16 checkpoint on the held-out text, in nats per token, and how far the container may be off.
HELD_OUT_LOSS, HELD_OUT_TOLERANCE = 0.3729, 0.0005
DOCUMENTS, TOKENS, TARGETS = 458, 50_173, 49_715


@pytest.fixture(scope="module")
def prompts(data: Path) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads((data / "prompts.json").read_text("utf-8"))
    assert len(loaded) == 26
    return loaded


@pytest.fixture(scope="module")
def exact(demo_hf: Path) -> Iterator[colibri.Model]:
    with colibri.load(demo_hf, numerics="f32", ram="1GB", ctx=2048) as model:
        yield model


@pytest.fixture(scope="module")
def demo() -> Iterator[colibri.Model]:
    with colibri.load("demo", ram="1GB", ctx=2048) as model:
        yield model


def test_greedy_answers_equal_the_reference(exact: colibri.Model, prompts: list[dict[str, Any]]) -> None:
    longest = 0
    for prompt in prompts:
        for number, turn in enumerate(prompt["turns"]):
            expected = turn["greedy_ids"]
            result = exact.generate(tokens=turn["prompt_ids"], temperature=0, max_tokens=len(expected))
            chosen = list(result.token_ids)
            if result.stop_token is not None:
                chosen.append(result.stop_token)
            assert chosen == expected, f"{prompt['name']}, turn {number}"
            longest = max(longest, len(turn["prompt_ids"]) + len(expected))
    # Past the cut of the sparse attention, which keeps 256 keys.
    assert longest > 256


def test_conversations_through_a_session_equal_the_reference(
    exact: colibri.Model, prompts: list[dict[str, Any]]
) -> None:
    """The whole way: template, tokenizer, prefix reuse, end tokens, text."""
    for prompt in prompts:
        if prompt["tools"] or prompt["name"].startswith("raw_"):
            continue
        with exact.session() as session:
            for user, turn in zip(prompt["user"], prompt["turns"], strict=True):
                # An answer that the reference cut off by its limit of tokens is cut here too.
                result = session.chat(user, temperature=0, max_tokens=len(turn["greedy_ids"]))
                assert result.stats.prompt_tokens == len(turn["prompt_ids"])
                assert result.text == turn["text"].removesuffix("<|user|>"), prompt["name"]


def test_the_container_agrees_with_the_reference(demo: colibri.Model, prompts: list[dict[str, Any]]) -> None:
    agreed = total = 0
    for prompt in prompts:
        for turn in prompt["turns"]:
            ids = turn["prompt_ids"] + turn["greedy_ids"]
            rows = demo.logits(ids[:-1])[len(turn["prompt_ids"]) - 1 :]
            agreed += int((rows.argmax(axis=1) == np.array(turn["greedy_ids"])).sum())
            total += len(turn["greedy_ids"])
    assert total > 1000
    assert agreed / total >= 0.99, f"{agreed} of {total}"


def test_the_container_predicts_held_out_text_as_well(demo: colibri.Model, data: Path) -> None:
    text = (data / "eval_heldout.txt").read_text("utf-8")
    head, *documents = text.split("[gMASK]<sop>")
    assert not head.strip()
    assert len(documents) == DOCUMENTS
    loss, targets, tokens = 0.0, 0, 0
    for document in documents:
        ids = demo.tokenizer.encode("[gMASK]<sop>" + document)
        tokens += len(ids)
        rows = demo.logits(ids[:-1])
        highest = rows.max(axis=1)
        sums = np.log(np.exp(rows - highest[:, None]).sum(axis=1, dtype=np.float64)) + highest
        loss += float((sums - rows[np.arange(len(rows)), ids[1:]]).sum(dtype=np.float64))
        targets += len(rows)
    assert (tokens, targets) == (TOKENS, TARGETS)
    assert math.isclose(loss / targets, HELD_OUT_LOSS, abs_tol=HELD_OUT_TOLERANCE), loss / targets


def test_raw_text_has_no_template(demo: colibri.Model, prompts: list[dict[str, Any]]) -> None:
    raw = next(prompt for prompt in prompts if prompt["name"] == "raw_story")
    turn = raw["turns"][0]
    result = demo.generate(turn["prompt"], raw=True, temperature=0, max_tokens=8)
    assert result.stats.prompt_tokens == len(turn["prompt_ids"])
