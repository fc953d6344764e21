"""Generating with a grammar: what is chosen, what is drafted, and that drafts change nothing."""

from __future__ import annotations

import json
from typing import Any

import colibri
import numpy as np
import pytest
from colibri import Grammar
from colibri.engine import grammar_state
from colibri.grammar import vocabulary_of
from colibri.guide import Guidance, Guide

ASK = "Extract name, age and city as JSON: Omar is 42 years old and lives in Lisbon."
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
    "required": ["name", "age", "city"],
}
STORY = "Write a story about a fox."
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 64}
SEEDED: dict[str, Any] = {"temperature": 0.8, "seed": 11, "max_tokens": 64}


@pytest.fixture(scope="module")
def flexible() -> Grammar:
    return Grammar.from_json_schema(SCHEMA, whitespace="flexible")


# Constraining.


@pytest.mark.parametrize(
    "sampling", [GREEDY, SEEDED, {**SEEDED, "top_k": 3, "min_p": 0.05, "repeat_penalty": 1.2}]
)
def test_every_answer_fits_the_grammar(model: colibri.Model, sampling: dict[str, Any]) -> None:
    grammar = Grammar.from_json_schema(SCHEMA)
    for question in (ASK, STORY):
        result = model.generate(question, grammar=grammar, **{**sampling, "max_tokens": 200})
        if result.finish_reason == "stop":
            assert result.complete is True
            assert list(json.loads(result.text)) == ["name", "age", "city"]
            assert grammar.accepts(result.text)
        else:
            assert result.complete is False
            assert grammar.matched(result.text) == len(result.text.encode())


def test_the_right_values_come_out(model: colibri.Model, flexible: Grammar) -> None:
    result = model.generate(ASK, grammar=flexible, **GREEDY)
    assert json.loads(result.text) == {"name": "Omar", "age": 42, "city": "Lisbon"}
    assert result.finish_reason == "stop"


def test_gr_37_a_finished_grammar_ends_the_answer(model: colibri.Model) -> None:
    """GR-37."""
    result = model.generate(STORY, grammar=Grammar.from_gbnf('root ::= "ok"'), **GREEDY)
    assert (result.text, result.finish_reason, result.complete) == ("ok", "stop", True)
    # Where more could follow, each of the end tokens ends it, and only they do.
    for stop in sorted(model.stop_ids):

        def prefer(tokens: Any, logits: Any, stop: int = stop) -> None:
            logits[stop] = 1e6

        ended = model.generate(
            STORY, grammar=Grammar.from_gbnf('root ::= "ok"+'), logits_processors=[prefer], **GREEDY
        )
        assert (ended.text, ended.stop_token, ended.finish_reason) == ("ok", stop, "stop")


def test_an_answer_that_is_cut_is_incomplete(model: colibri.Model, flexible: Grammar) -> None:
    cut = model.generate(ASK, grammar=flexible, temperature=0, max_tokens=4)
    assert (cut.finish_reason, cut.complete) == ("length", False)
    open_ended = model.generate(
        STORY, grammar=Grammar.from_gbnf('root ::= "a"+'), temperature=0, max_tokens=4
    )
    assert (open_ended.finish_reason, open_ended.complete) == ("length", True)
    assert model.generate(STORY, temperature=0, max_tokens=4).complete is None


def test_reasoning_is_free(model: colibri.Model) -> None:
    result = model.generate(STORY, grammar=Grammar.from_gbnf('root ::= "ok"'), think=True, **GREEDY)
    assert result.text == "ok"
    assert result.complete is True


def test_a_processor_cannot_leave_the_grammar(model: colibri.Model, flexible: Grammar) -> None:
    def shout(tokens: Any, logits: Any) -> None:
        logits[model.tokenizer.encode("!")[0]] += 100

    plain = model.generate(ASK, grammar=flexible, draft="off", logits_processors=[shout], **GREEDY)
    assert flexible.matched(plain.text) == len(plain.text.encode())
    drafted = model.generate(ASK, grammar=flexible, draft="grammar", logits_processors=[shout], **GREEDY)
    assert drafted.token_ids == plain.token_ids


def test_a_text_that_leads_nowhere_is_an_error(make_tokenizer: Any) -> None:
    from colibri.tokenizer import Tokenizer

    tokenizer = Tokenizer.read(make_tokenizer({"a": 0}))
    state = grammar_state(Grammar.from_gbnf('root ::= "b"').native, vocabulary_of(tokenizer, 1), [])
    assert not state.mask().any()


# Drafts change nothing.

GRAMMARS = {
    "fits": lambda: Grammar.from_json_schema(SCHEMA, whitespace="flexible"),
    "compact": lambda: Grammar.from_json_schema(SCHEMA),
    "wrong": lambda: Grammar.from_gbnf('root ::= "zzzz" .*'),
    "late": lambda: Grammar.from_gbnf('root ::= "{" [^}]* "}" "never said, but forced"'),
}


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED])
@pytest.mark.parametrize("name", GRAMMARS)
def test_gr_33_in_draft_mode_no_grammar_changes_the_answer(
    model: colibri.Model, name: str, sampling: dict[str, Any]
) -> None:
    """GR-33: tokens, log probabilities and the reason of the end stay."""
    free = list(model.stream(ASK, **sampling))
    for draft in ("off", "auto", "grammar"):
        stream = model.stream(
            ASK, grammar=GRAMMARS[name](), grammar_mode="draft", draft=draft, draft_max=8, **sampling
        )
        assert list(stream) == free
        assert stream.result.complete is None
    if name == "wrong":
        assert stream.result.stats.drafts["grammar"].switched_off == "the text left the grammar"


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED])
def test_grammars_draft_what_is_right_right_for_a_while_and_wrong(
    model: colibri.Model, sampling: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What GR-33 rests on: drafts that are accepted, refused in part and refused as a whole do occur."""
    outcomes: list[tuple[int, int]] = []
    judge = Guide.judge

    def note(self: Guide, proposed: int, accepted: int) -> None:
        outcomes.append((proposed, accepted))
        judge(self, proposed, accepted)

    monkeypatch.setattr(Guide, "judge", note)
    free = list(model.stream(ASK, **sampling))
    written = "".join(chunk.text for chunk in free)
    assert written.startswith('{"name": "')

    def outcomes_of(grammar: Grammar) -> list[tuple[int, int]]:
        outcomes.clear()
        stream = model.stream(ASK, grammar=grammar, grammar_mode="draft", draft="grammar", **sampling)
        assert list(stream)[2:] == free[2:]
        return list(outcomes)

    fits = outcomes_of(GRAMMARS["fits"]())
    assert any(accepted == proposed > 1 for proposed, accepted in fits)
    for kept in (4, 12, 20):
        ((proposed, accepted), *_) = outcomes_of(
            Grammar.from_gbnf(f"root ::= {json.dumps(written[:kept] + 'zz zz zz')} .*")
        )
        assert 0 < accepted < proposed, written[:kept]
    ((proposed, accepted), *_) = outcomes_of(GRAMMARS["wrong"]())
    assert accepted == 0 < proposed


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED])
@pytest.mark.parametrize("question", [ASK, STORY])
def test_in_constrain_mode_drafts_change_nothing(
    model: colibri.Model, question: str, sampling: dict[str, Any], flexible: Grammar
) -> None:
    whole = model.generate(question, grammar=flexible, draft="off", **sampling)
    for draft, most in (("auto", 16), ("grammar", 1), ("grammar", 63)):
        again = model.generate(question, grammar=flexible, draft=draft, draft_max=most, **sampling)
        assert again.token_ids == whole.token_ids
        assert again.finish_reason == whole.finish_reason
        assert again.stats.forced_tokens == whole.stats.forced_tokens
    assert whole.stats.drafts["grammar"].proposed == 0


def test_drafts_save_passes(model: colibri.Model, flexible: Grammar) -> None:
    keys = ("name_of_the_person", "age_of_the_person", "city_of_the_person")
    schema = {
        "type": "object",
        "properties": {key: {"enum": ["a", "b"]} for key in keys},
        "required": list(keys),
    }
    grammar = Grammar.from_json_schema(schema)
    off = model.generate(STORY, grammar=grammar, draft="off", **GREEDY)
    on = model.generate(STORY, grammar=grammar, draft="grammar", **GREEDY)
    assert on.token_ids == off.token_ids
    assert off.stats.forwards_saved == 0
    assert on.stats.forwards + on.stats.forwards_saved == off.stats.forwards
    assert on.stats.forced_tokens > len(on.token_ids) // 2


def test_gr_31_a_space_that_the_grammar_does_not_know_detaches_quietly(model: colibri.Model) -> None:
    """GR-31: the model writes a space behind the colon, the compact grammar has none."""
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    free = model.generate(ASK, **GREEDY)
    assert '": ' in free.text
    result = model.generate(ASK, grammar=Grammar.from_json_schema(schema), grammar_mode="draft", **GREEDY)
    assert result.text == free.text
    assert result.stats.drafts["grammar"].switched_off == "the text left the grammar"


def test_gr_40_a_source_that_was_switched_off_is_back_in_the_next_request(
    model: colibri.Model, flexible: Grammar
) -> None:
    """GR-40."""
    wrong = model.generate(ASK, grammar=GRAMMARS["wrong"](), grammar_mode="draft", **GREEDY)
    assert wrong.stats.drafts["grammar"].switched_off
    right = model.generate(ASK, grammar=flexible, grammar_mode="draft", **GREEDY)
    assert right.stats.drafts["grammar"].accepted > 0


# The guide alone.


def guide_of(model: colibri.Model, grammar: Grammar, prompt: str = "", **given: Any) -> Guide:
    ids = model.tokenizer.encode(prompt)
    return Guide(Guidance(grammar, **given), model.tokenizer, model.info.vocab_size, ids, model.stop_ids)


def test_gr_34_a_draft_is_a_beginning_of_the_canonical_tokens(model: colibri.Model) -> None:
    """GR-34: whatever follows the span, the tokens drafted are those of the whole text."""
    tokenizer = model.tokenizer
    for span in ('","fit":', '{"name": "', '", "city": "', "Once upon a time", '{"thought":"'):
        grammar = Grammar.from_gbnf(f"root ::= {json.dumps(span)} [a-z0-9 \\x22]+")
        for before in ("", "Well", "It is ", '{"a": "b'):
            guide = guide_of(model, grammar, before)
            drafted = guide.propose(60)
            # Asking leaves the position where it was.
            assert guide.propose(60) == drafted
            head = tokenizer.encode(before)
            for following in ("a", "1", " ", '"', '" x', " a "):
                whole = tokenizer.encode(before + span + following)
                if whole[: len(head)] == head:
                    assert whole[len(head) : len(head) + len(drafted)] == drafted
                else:
                    assert drafted == []


def test_gr_36_after_a_refused_draft_the_position_is_that_of_the_text(model: colibri.Model) -> None:
    """GR-36."""
    grammar = Grammar.from_gbnf('root ::= "one two three four five" | "one two threads" [a-z]*')
    tokens = model.tokenizer.encode("one two thre")
    guide, fresh = guide_of(model, grammar), guide_of(model, grammar)
    for token in tokens:
        guide.propose(16)
        guide.commit(token)
        fresh.commit(token)
    assert guide.propose(16) == fresh.propose(16)
    state, other = guide.constraint(), fresh.constraint()
    assert state is not None
    assert other is not None
    assert (state.length, state.forced(99), state.allowed_bytes()) == (
        other.length,
        other.forced(99),
        other.allowed_bytes(),
    )
    assert (state.mask() == other.mask()).all()


@pytest.mark.parametrize("draft", ["auto", "off", "grammar"])
@pytest.mark.parametrize("temperature", [0, 0.8])
def test_forced_text_is_cut_as_the_tokenizer_cuts_it(
    model: colibri.Model, draft: str, temperature: float
) -> None:
    for text in ("Temperature in degrees: 20", '{"name": "Ada Lovelace", "born": 1815}', "größer als 7"):
        grammar = Grammar.from_gbnf(f"root ::= {json.dumps(text, ensure_ascii=False)}")
        answer = model.generate(
            "Say anything.", temperature=temperature, seed=5, grammar=grammar, draft=draft, draft_max=5
        )
        assert answer.text == text
        assert list(answer.token_ids) == model.tokenizer.encode(text)
        saved = answer.stats.drafts["grammar"]
        assert saved.accepted == saved.proposed
        assert bool(saved.proposed) is (draft != "off")


def test_a_forced_token_that_a_processor_rules_out_is_not_taken(model: colibri.Model) -> None:
    grammar, (banned,) = Grammar.from_gbnf('root ::= "weather"'), model.tokenizer.encode("weather")

    def ban(tokens: Any, logits: Any) -> None:
        logits[banned] = -np.inf

    answer = model.generate("Say anything.", temperature=0, grammar=grammar, logits_processors=[ban])
    assert answer.text == "weather"
    assert banned not in answer.token_ids


@pytest.mark.parametrize(
    ("grammar", "stop", "text", "complete"),
    [
        ('root ::= "abc"', "c", "ab", False),
        ('root ::= "abc"', "abc", "", False),
        ('root ::= "ab" "c"', "x", "abc", True),
        ('root ::= "ab" ("c" | "cd")', "c", "ab", False),
        ('root ::= "ab" ("cd" | "ce")?', "c", "ab", True),
    ],
)
def test_what_a_stop_string_cuts_off_is_no_part_of_the_answer(
    model: colibri.Model, grammar: str, stop: str, text: str, complete: bool
) -> None:
    bound = Grammar.from_gbnf(grammar)
    with model.session() as session:
        answer = session.chat(
            "hi", grammar=bound, stop=stop, temperature=0, logits_processors=[_no_end(model)]
        )
        assert (answer.text, answer.complete, answer.finish_reason) == (text, complete, "stop")
        with pytest.raises(colibri.InvalidValue, match="nothing to continue"):
            session.resume()


def _no_end(model: colibri.Model) -> Any:
    def processor(tokens: Any, logits: Any) -> None:
        for token in model.stop_ids:
            logits[token] = logits.min()

    return processor


def test_a_stop_string_that_began_before_a_cut_is_found(model: colibri.Model) -> None:
    ask, stop = "What is the capital of France?", " capital of"
    whole = model.generate(ask, temperature=0, stop=stop)
    free = model.generate(ask, temperature=0)
    assert whole.text != free.text
    at = len(model.tokenizer.encode(whole.text))
    for cut in range(1, at + 3):
        with model.session() as session:
            first = session.chat(ask, temperature=0, stop=stop, max_tokens=cut)
            if first.finish_reason == "length":
                session.resume(temperature=0, stop=stop).finish()
            assert session.messages[-1]["content"] == whole.text, cut


def test_drafts_that_do_not_pay_are_switched_off(model: colibri.Model) -> None:
    grammar = Grammar.from_gbnf('root ::= "a"')
    for draft, off in (("auto", True), ("grammar", False)):
        guide = guide_of(model, grammar, draft=draft)
        for _ in range(8):
            guide.judge(4, 1)
        statistics = guide.statistics()
        assert (statistics.proposed, statistics.accepted) == (32, 8)
        assert bool(statistics.switched_off) is off
        assert bool(guide.propose(4)) is False
    paying = guide_of(model, grammar)
    for _ in range(8):
        paying.judge(4, 3)
    assert paying.statistics().switched_off is None


# Options.


@pytest.mark.parametrize(
    "options",
    [
        {"grammar": 'root ::= "a"'},
        {"grammar_mode": "loose"},
        {"draft": "mtp"},
        {"draft_max": 0},
        {"draft_max": 64},
        {"draft_max": 2.0},
        {"tools": "none"},
        {"tools": []},
        {"parallel_tool_calls": 1},
        {"tools_lenient": "yes"},
        {"json_whitespace": "nope"},
        {"tools": [{"name": "a"}], "grammar": Grammar.from_gbnf('root ::= "a"')},
        {"tools": [{"name": "a"}], "tool_choice": "b"},
        {"tools": [{"name": "a"}], "raw": True},
    ],
)
def test_options_are_checked_before_anything_runs(model: colibri.Model, options: dict[str, Any]) -> None:
    with pytest.raises(colibri.InvalidValue):
        model.stream("hi", **options)


def test_a_folder_without_a_tokenizer_takes_no_grammar(oracle: Any) -> None:
    grammar = Grammar.from_gbnf('root ::= "a"')
    with (
        colibri.load(oracle / "glm_sparse", ram="1GB") as bare,
        pytest.raises(colibri.ModelError, match="tokenizer_missing"),
    ):
        bare.generate(tokens=[1, 2], grammar=grammar)


def test_sessions_continue_a_cut_answer_inside_the_grammar(model: colibri.Model, flexible: Grammar) -> None:
    whole = model.generate(ASK, grammar=flexible, **GREEDY)
    with model.session() as session:
        cut = session.chat(ASK, grammar=flexible, temperature=0, max_tokens=6)
        assert cut.complete is False
        rest = session.resume(grammar=flexible, temperature=0, max_tokens=64).finish()
        assert cut.text + rest.text == whole.text
        assert rest.complete is True
        with pytest.raises(colibri.InvalidValue, match="nothing to continue"):
            session.resume(grammar=flexible)
        session.chat(STORY, temperature=0, max_tokens=3)
        with pytest.raises(colibri.InvalidValue, match="does not fit"):
            session.resume(grammar=flexible).finish()


def test_the_cache_holds_only_what_was_chosen(model: colibri.Model, flexible: Grammar) -> None:
    """Prefix reuse after drafts gives what a fresh session gives."""
    with model.session() as session:
        first = session.chat(ASK, grammar=flexible, **GREEDY)
        assert len(session) <= first.stats.prompt_tokens + len(first.token_ids)
        second = session.chat("What is 6 * 7?", **GREEDY)
    assert second.text == "6 * 7 = 42"
