"""Drafts never change a token: right, partly right and wrong ones, however tokens are chosen, wherever the
weights live, and at every end that an answer can have.

The drafts are scripted: they are cut from the answer that comes without drafts, and spoilt where a test wants
it. What grammars propose of themselves is in `test_grammar_generation.py`.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import colibri
import pytest
from colibri import Grammar
from colibri.guide import Guide

ASK = "Extract name, age and city as JSON: Omar is 42 years old and lives in Lisbon."
STORY = "Write a story about a fox."
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 48}
SEEDED: dict[str, Any] = {"temperature": 0.8, "seed": 11, "max_tokens": 48}
ANYTHING = Grammar.from_gbnf("root ::= [^\\x00]*")


def shy(tokens: Any, logits: Any) -> None:
    """A processor that depends on everything before: each token is less likely where it stood lately."""
    logits[tokens[-7:]] -= 3
    logits[len(tokens) % len(logits)] += 1


CHOICES: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "seeded": SEEDED,
    "hot": {**SEEDED, "temperature": 1.5, "top_p": 1.0},
    "top-k": {**SEEDED, "top_k": 3},
    "top-p": {**SEEDED, "top_p": 0.5},
    "min-p": {**SEEDED, "min_p": 0.2},
    "penalties": {**SEEDED, "repeat_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4},
    "greedy with penalties": {**GREEDY, "repeat_penalty": 1.3, "frequency_penalty": 0.4},
    "processor": {**SEEDED, "logits_processors": [shy]},
    "greedy with a processor": {**GREEDY, "logits_processors": [shy]},
}

Plan = Callable[[int], tuple[int, int]]
"""How many right tokens, and how many others behind them, are drafted before the n-th token of the answer."""


@dataclasses.dataclass
class Script:
    """What is drafted, and what became of it: pairs of proposed and accepted."""

    prompt: int = 0
    known: Sequence[int] = ()
    plan: Plan = lambda position: (0, 0)
    vocabulary: int = 2
    outcomes: list[tuple[int, int]] = dataclasses.field(default_factory=list)

    def propose(self, chosen: int, most: int) -> list[int]:
        right, wrong = self.plan(chosen)
        # The known answer holds the token before the draft too.
        draft = list(self.known[chosen : chosen + right])
        following = self.known[chosen + right] if chosen + right < len(self.known) else 0
        draft += [(following + 1 + step) % self.vocabulary for step in range(wrong)]
        return draft[:most]

    @property
    def kinds(self) -> set[str]:
        """Which outcomes there were."""
        return {
            "accepted" if accepted == proposed else "refused" if not accepted else "in part"
            for proposed, accepted in self.outcomes
        }


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, model: colibri.Model) -> Script:
    """Replaces what grammars propose by a script."""
    made = Script(vocabulary=model.info.vocab_size)
    committed: dict[int, int] = {}
    commit, judge = Guide.commit, Guide.judge

    def count(self: Guide, token: int) -> None:
        committed[id(self)] = committed.get(id(self), 0) + 1
        commit(self, token)

    def note(self: Guide, proposed: int, accepted: int) -> None:
        made.outcomes.append((proposed, accepted))
        judge(self, proposed, accepted)

    start = Guide.__init__

    def begin(self: Guide, *arguments: Any, **options: Any) -> None:
        committed[id(self)] = 0
        start(self, *arguments, **options)

    monkeypatch.setattr(Guide, "__init__", begin)
    monkeypatch.setattr(Guide, "commit", count)
    monkeypatch.setattr(Guide, "judge", note)
    monkeypatch.setattr(Guide, "propose", lambda self, most: made.propose(committed[id(self)], most))
    return made


def mixed(seed: int) -> Plan:
    """Drafts of every length, right for a while and then wrong."""
    chooser = random.Random(seed)

    def plan(position: int) -> tuple[int, int]:
        return chooser.choice((0, 1, 2, 3, 7, 16, 17)), chooser.choice((0, 0, 1, 2, 8))

    return plan


def facts(stream: colibri.Stream) -> Any:
    """All that must not change: every chunk with its log probability, the end and what is known of it."""
    # What was found in the cache, of which the progress tells, is another matter.
    chunks = [chunk for chunk in stream if chunk.kind != "progress"]
    result = stream.result
    return chunks, result.token_ids, result.finish_reason, result.stop_token, result.limit, result.text


def drafted(model: colibri.Model | colibri.Session, prompt: str, **options: Any) -> colibri.Stream:
    return model.stream(
        prompt, grammar=ANYTHING, grammar_mode="draft", draft="grammar", draft_max=63, **options
    )


# However tokens are chosen.


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("prompt", [ASK, STORY])
def test_sp_04_no_draft_changes_what_is_chosen(
    model: colibri.Model, script: Script, name: str, prompt: str
) -> None:
    """SP-04, SP-15: tokens and their probabilities stay, and the cache holds what was chosen."""
    plain = model.stream(prompt, **CHOICES[name])
    expected = facts(plain)
    script.known = plain.result.token_ids
    kinds: set[str] = set()
    for seed in range(6):
        script.plan, script.outcomes = mixed(seed), []
        stream = drafted(model, prompt, **CHOICES[name])
        assert facts(stream) == expected
        stats = stream.result.stats
        kinds |= script.kinds
        assert stats.forwards_saved == sum(accepted for _, accepted in script.outcomes)
        draft = stats.drafts["grammar"]
        assert (draft.proposed, draft.accepted) == tuple(map(sum, zip(*script.outcomes, strict=True)))
        assert cached(model) == [*prompt_ids(model, prompt), *expected[1]][: len(cached(model))]
        assert len(cached(model)) >= stats.prompt_tokens + len(expected[1]) - 1
    assert kinds == {"accepted", "in part", "refused"}


@pytest.mark.parametrize("name", ["greedy", "seeded", "processor"])
def test_no_draft_changes_what_a_grammar_allows(model: colibri.Model, script: Script, name: str) -> None:
    """Constrained: a draft that the grammar does not allow is refused as any other."""
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    }
    grammar = Grammar.from_json_schema(schema, whitespace="flexible")
    plain = model.stream(ASK, grammar=grammar, draft="off", **CHOICES[name])
    script.plan = lambda position: (0, 0)
    expected = facts(plain)
    script.known = plain.result.token_ids
    for seed in range(10):
        script.plan = mixed(seed)
        assert facts(model.stream(ASK, grammar=grammar, draft="grammar", **CHOICES[name])) == expected
    assert script.kinds == {"accepted", "in part", "refused"}


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 63])
def test_sp_01_drafts_of_any_length(model: colibri.Model, script: Script, length: int) -> None:
    """SP-01, SP-07: however many rows one pass has."""
    for prompt in (ASK, STORY, "What is 6 * 7?", "Hello"):
        for choice in (GREEDY, SEEDED):
            script.plan = lambda position: (0, 0)
            plain = model.stream(prompt, **choice)
            expected = facts(plain)
            script.known = plain.result.token_ids
            for right in {0, length // 2, length}:
                script.plan = lambda position, right=right: (right, length - right)
                assert facts(drafted(model, prompt, **choice)) == expected


@pytest.mark.parametrize(("right", "wrong"), [(1, 1), (2, 2), (0, 3)])
def test_sp_03_the_row_behind_the_last_right_draft_is_used(
    model: colibri.Model, script: Script, right: int, wrong: int
) -> None:
    """SP-03."""
    plain = model.stream(STORY, **GREEDY)
    expected = facts(plain)
    script.known = plain.result.token_ids
    script.plan = lambda position: (right, wrong)
    assert facts(drafted(model, STORY, **GREEDY)) == expected
    whole = [outcome for outcome in script.outcomes if outcome[0] == right + wrong]
    assert whole
    assert {accepted for _, accepted in whole} == {right}


def test_sp_13_drawing_is_not_biased(model: colibri.Model, script: Script) -> None:
    """SP-12, SP-13: over many seeds the first token is that of the same seed without a draft, and the share
    of accepted drafts is the token's probability."""
    options = {"temperature": 1.5, "top_p": 1.0, "max_tokens": 2}
    chunks = [chunk for chunk in model.stream(STORY, **options, seed=0) if chunk.token is not None]
    # The likeliest first token is drafted whatever comes.
    rows = model.logits(prompt_ids(model, STORY))[-1].astype(float) / 1.5
    likeliest = int(rows.argmax())
    probability = 1 / sum(2.718281828459045 ** (rows - rows.max()))
    assert len(chunks) == 2
    accepted, rounds = 0, 400
    for seed in range(rounds):
        plain = model.generate(STORY, **options, seed=seed)
        script.known, script.plan, script.outcomes = [likeliest], lambda position: (1, 0), []
        again = drafted(model, STORY, **options, seed=seed).finish()
        assert again.token_ids == plain.token_ids
        assert script.outcomes[0] == (1, int(plain.token_ids[:1] == (likeliest,)))
        accepted += script.outcomes[0][1]
    assert abs(accepted / rounds - probability) < 4 * (probability * (1 - probability) / rounds) ** 0.5


# Wherever the weights live, and in conversations.


@pytest.fixture(params=[("16MB", 1), ("18MB", 2), ("1GB", 1)], ids=str)
def placed(request: pytest.FixtureRequest) -> Iterator[colibri.Model]:
    """The embedded model with few and with all experts in memory, on one and two threads."""
    ram, threads = request.param
    with colibri.load("demo", ram=ram, ctx=512, threads=threads) as opened:
        assert (opened.plan.slots < opened.plan.experts_total) == (ram != "1GB")
        yield opened


def test_no_draft_changes_what_is_chosen_with_few_experts_in_memory(
    placed: colibri.Model, script: Script
) -> None:
    with colibri.load("demo", ram="1GB", ctx=512, threads=2) as other:
        for choice in (GREEDY, SEEDED):
            script.plan = lambda position: (0, 0)
            plain = other.stream(STORY, **choice)
            expected = facts(plain)
            script.known = plain.result.token_ids
            script.plan, script.outcomes = mixed(5), []
            assert facts(drafted(placed, STORY, **choice)) == expected
            assert script.kinds == {"accepted", "in part", "refused"}


@pytest.mark.parametrize("choice", [GREEDY, SEEDED])
def test_turns_and_rewinds_after_drafts(model: colibri.Model, script: Script, choice: dict[str, Any]) -> None:
    with model.session() as plain, model.session() as other:
        for turn, text in enumerate([STORY, ASK, None, "Hello", None, None, STORY]):
            if text is None:
                plain.rewind()
                other.rewind()
                continue
            script.plan = lambda position: (0, 0)
            stream = plain.stream(text, **choice)
            expected = facts(stream)
            script.known, script.plan = stream.result.token_ids, mixed(turn)
            assert facts(drafted(other, text, **choice)) == expected
    assert script.kinds == {"accepted", "in part", "refused"}


# At every end.


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6])
def test_sp_09_no_draft_passes_the_limit(model: colibri.Model, script: Script, limit: int) -> None:
    """SP-09."""
    options = {**GREEDY, "max_tokens": limit}
    whole = model.generate(STORY, **GREEDY)
    script.known, script.plan = whole.token_ids, lambda position: (4, 0) if position != 1 else (0, 0)
    stream = drafted(model, STORY, **options)
    chunks = [chunk.token for chunk in stream if chunk.token is not None]
    result = stream.result
    assert chunks == list(result.token_ids) == list(whole.token_ids[:limit])
    assert (result.finish_reason, result.limit) == ("length", "max_tokens")
    assert len(cached(model)) <= result.stats.prompt_tokens + limit
    with pytest.raises(colibri.InvalidValue, match="max_tokens"):
        drafted(model, STORY, temperature=0, max_tokens=0)


def test_sp_10_a_stop_token_in_a_draft_ends_the_answer(model: colibri.Model, script: Script) -> None:
    """SP-10: what stands behind it is neither shown, nor kept, nor counted."""
    plain = model.generate("What is 6 * 7?", **GREEDY)
    assert plain.stop_token is not None
    # What the model would go on with.
    ids = [*prompt_ids(model, "What is 6 * 7?"), *plain.token_ids, plain.stop_token]
    behind = model.generate(tokens=ids, temperature=0, max_tokens=3)
    script.known = [*plain.token_ids, plain.stop_token, *behind.token_ids]
    for length in (2, 8, 63):
        script.plan = lambda position, length=length: (length, 0)
        result = drafted(model, "What is 6 * 7?", **GREEDY).finish()
        assert (result.token_ids, result.stop_token, result.text) == (
            plain.token_ids,
            plain.stop_token,
            plain.text,
        )
        assert result.stats.completion_tokens == len(plain.token_ids)
        assert cached(model) == ids[: len(cached(model))]
        assert len(cached(model)) <= len(ids) - 1


def test_a_stop_string_in_a_draft_ends_the_answer(model: colibri.Model, script: Script) -> None:
    whole = model.generate(STORY, **GREEDY)
    stop = whole.text[20:24]
    plain = model.stream(STORY, stop=stop, **GREEDY)
    expected = facts(plain)
    script.known, script.plan = whole.token_ids, lambda position: (16, 0)
    assert facts(drafted(model, STORY, stop=stop, **GREEDY)) == expected
    assert len(cached(model)) <= plain.result.stats.prompt_tokens + len(plain.result.token_ids)


def test_a_full_context_ends_the_answer(script: Script) -> None:
    with colibri.load("demo", ram="1GB", ctx=64) as small:
        options: dict[str, Any] = {"temperature": 0, "max_tokens": 500}
        plain = small.stream(STORY, **options)
        expected = facts(plain)
        assert plain.result.limit == "context"
        script.known, script.plan = plain.result.token_ids, lambda position: (16, 1)
        assert facts(drafted(small, STORY, **options)) == expected


def test_a_stream_that_is_stopped_in_a_draft_keeps_what_was_chosen(
    model: colibri.Model, script: Script
) -> None:
    whole = model.generate(STORY, **GREEDY)
    script.known, script.plan = whole.token_ids, lambda position: (16, 2)
    for count in (1, 2, 9, 17, 18, 19):
        stream = drafted(model, STORY, **GREEDY)
        taken = 0
        for chunk in stream:
            taken += chunk.token is not None
            if taken == count:
                break
        stream.close()
        assert stream.result.token_ids == whole.token_ids[:count]
        held = cached(model)
        assert held == [*prompt_ids(model, STORY), *whole.token_ids][: len(held)]
        assert len(held) <= stream.result.stats.prompt_tokens + count


def prompt_ids(model: colibri.Model, prompt: str) -> list[int]:
    text = model.template.render([{"role": "user", "content": prompt}])
    return model.tokenizer.encode(text)


def cached(model: colibri.Model) -> list[int]:
    """The tokens in the KV cache of the model's own generations."""
    return list(model._cache.session().tokens())
