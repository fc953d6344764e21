"""Generating: prompts, streams, text from tokens, stop strings, and every way to stop."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import colibri
import numpy as np
import pytest
from colibri.assembly import TextAssembler
from colibri.tokenizer import Tokenizer

PROMPT = "Write a story about a fox."
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24}


# Generating.


def test_a_prompt_is_given_in_one_way(model: colibri.Model) -> None:
    for prompt in ({}, {"prompt": "a", "tokens": [1]}, {"messages": [{"role": "user"}], "tokens": [1]}):
        with pytest.raises(colibri.InvalidValue, match="exactly one"):
            model.generate(**prompt)
    with pytest.raises(colibri.InvalidValue, match="system"):
        model.generate("a", raw=True, system="b")


@pytest.mark.parametrize(
    "tokens", [[], [2560], [-1], [0.5], ["a"], [[1, 2]], "abc", 5, [None], np.array([[1]]), np.array([1.5])]
)
def test_token_ids_are_checked(model: colibri.Model, tokens: Any) -> None:
    for use in (lambda: model.generate(tokens=tokens), lambda: model.logits(tokens)):
        with pytest.raises(colibri.InvalidValue):
            use()


def test_every_way_to_say_a_prompt_gives_the_same(model: colibri.Model) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PROMPT}]
    text = model.template.render(messages, enable_thinking=False)
    ids = model.tokenizer.encode(text)
    answers = [
        model.generate(PROMPT, system="Be brief.", **GREEDY),
        model.generate(messages=messages, **GREEDY),
        model.generate(text, raw=True, **GREEDY),
        model.generate(tokens=ids, **GREEDY),
        model.generate(tokens=np.array(ids, dtype=np.int64), **GREEDY),
        model.generate(messages=messages, params=colibri.SamplingParams(**GREEDY)),
    ]
    assert len({answer.token_ids for answer in answers}) == 1
    assert answers[0].tokens.dtype == np.int32
    assert answers[0].tokens.tolist() == list(answers[0].token_ids)


def test_end_tokens_end_every_path(model: colibri.Model) -> None:
    text = model.template.render([{"role": "user", "content": "What is 6 * 7?"}], enable_thinking=False)
    for prompt in (
        {"prompt": "What is 6 * 7?"},
        {"prompt": text, "raw": True},
        {"tokens": model.tokenizer.encode(text)},
    ):
        result = model.generate(**prompt, temperature=0, max_tokens=100)
        assert (result.text, result.finish_reason) == ("6 * 7 = 42", "stop")
        assert result.stop_token in model.stop_ids
        assert result.stop_token not in result.token_ids


def test_the_stream_joined_is_the_answer(model: colibri.Model) -> None:
    whole = model.generate(PROMPT, **GREEDY)
    stream = model.stream(PROMPT, **GREEDY)
    with pytest.raises(ValueError, match="not finished"):
        _ = stream.result
    chunks = list(stream)
    assert "".join(chunk.text for chunk in chunks) == whole.text == stream.result.text
    assert [chunk.token for chunk in chunks if chunk.token is not None] == list(whole.token_ids)
    progress = [chunk for chunk in chunks if chunk.kind == "progress"]
    assert [chunk.done for chunk in progress][-1] == whole.stats.prompt_tokens == progress[-1].total
    assert all(chunk.text == "" for chunk in progress)


def test_log_probabilities_are_those_of_the_logits(model: colibri.Model) -> None:
    ids = model.tokenizer.encode("[gMASK]<sop>Once upon a time")
    chunks = [chunk for chunk in model.stream(tokens=ids, **GREEDY) if chunk.token is not None]
    logits = model.logits([*ids, *[chunk.token for chunk in chunks]]).astype(np.float64)
    for position, chunk in enumerate(chunks, start=len(ids) - 1):
        row = logits[position]
        assert row.argmax() == chunk.token
        expected = row[chunk.token] - row.max() - np.log(np.exp(row - row.max()).sum())
        assert chunk.logprob == pytest.approx(expected, abs=1e-5)


def test_statistics_add_up(model: colibri.Model) -> None:
    model.generate("Something else.", **GREEDY)
    first = model.generate(PROMPT, **GREEDY).stats
    again = model.generate(PROMPT, **GREEDY).stats
    assert first.completion_tokens == again.completion_tokens == 24
    assert again.cached_tokens == again.prompt_tokens - 1
    assert 0 < first.cached_tokens < first.prompt_tokens
    assert first.prefill_s > 0
    assert first.decode_s > 0
    assert first.first_token_s is not None
    assert first.expert_hits + first.expert_misses > 0
    assert json.loads(json.dumps(first.to_dict()))["seed"] == first.seed


def test_prefix_reuse_changes_no_token(demo_hf: Path, model: colibri.Model) -> None:
    warm = [model.generate(text, **GREEDY) for text in (PROMPT, PROMPT + " Please.", PROMPT)]
    with colibri.load(demo_hf, ram="1GB", ctx=2048) as fresh:
        cold = fresh.generate(PROMPT, **GREEDY)
    assert cold.stats.cached_tokens == 0
    assert warm[0].token_ids == warm[2].token_ids == cold.token_ids


@pytest.mark.parametrize("stop", ["fox", ["zzz", " village", "fox"], "x"])
def test_stop_strings_end_the_answer_and_are_no_part_of_it(model: colibri.Model, stop: Any) -> None:
    whole = model.generate(PROMPT, temperature=0, max_tokens=60).text
    stops = [stop] if isinstance(stop, str) else stop
    cut = min(whole.find(text) for text in stops if text in whole)
    stream = model.stream(PROMPT, temperature=0, max_tokens=60, stop=stop)
    shown = "".join(chunk.text for chunk in stream)
    assert shown == stream.result.text == whole[:cut]
    assert (stream.result.finish_reason, stream.result.stop_token) == ("stop", None)


def test_a_stop_string_over_several_tokens_is_never_shown_in_part(model: colibri.Model) -> None:
    whole = model.generate(PROMPT, temperature=0, max_tokens=60).text
    stop = whole[20:40]
    shown = ""
    for chunk in model.stream(PROMPT, temperature=0, max_tokens=60, stop=[stop, "never"]):
        shown += chunk.text
        assert whole.startswith(shown)
        assert len(shown) <= 20
    assert shown == whole[:20]


def test_text_held_back_for_a_stop_string_comes_at_the_end(model: colibri.Model) -> None:
    whole = model.generate(PROMPT, **GREEDY).text
    stop = whole[-3:] + "§"
    assert "".join(chunk.text for chunk in model.stream(PROMPT, stop=stop, **GREEDY)) == whole


@pytest.mark.parametrize("stop", ["", [""], [5], 5])
def test_stop_strings_are_checked(model: colibri.Model, stop: Any) -> None:
    if stop == "":
        assert model.generate(PROMPT, stop=stop, **GREEDY).finish_reason == "length"
        return
    with pytest.raises((colibri.InvalidValue, TypeError)):
        model.generate(PROMPT, stop=stop, **GREEDY)


# Text from tokens.


@pytest.fixture
def bytes_of(make_tokenizer: Any) -> Tokenizer:
    """ASCII letters, the bytes of two characters, and the thinking marks."""
    letters = [chr(code) for code in range(0x21, 0x7F)]
    vocab = {text: index for index, text in enumerate([*letters, "æ", "Ń", "ł"])}
    marks = [
        {"id": len(vocab) + index, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": False}
        for index, text in enumerate(["<think>", "</think>"])
    ]  # fmt: skip
    return Tokenizer.read(make_tokenizer(vocab, added=marks))


def assemble(
    tokenizer: Tokenizer, ids: list[int], **options: Any
) -> tuple[list[tuple[str, str]], TextAssembler]:
    text = TextAssembler(tokenizer.decoder(), **options)
    pieces: list[tuple[str, str]] = []
    for token in ids:
        kind, piece, stopped = text.push(token)
        pieces.append((kind, piece))
        if stopped:
            break
    return [*pieces, *text.finish()], text


def test_tk_14_an_answer_cut_inside_a_character(bytes_of: Tokenizer) -> None:
    ids = [bytes_of.token_id(text) for text in "abæ"]
    pieces, text = assemble(bytes_of, [token for token in ids if token is not None])
    assert pieces == [("text", "a"), ("text", "b"), ("text", ""), ("text", "\ufffd")]
    assert text.joined("text") == "ab\ufffd"


def test_tk_14_stream_and_answer_agree_at_the_limit(model: colibri.Model) -> None:
    # The bytes of an emoji are forced one by one and the limit cuts it.
    ids = model.tokenizer.encode_bytes(b"ab\xe6\xad")
    forced = iter([*ids, *ids])

    def force(tokens: Any, logits: Any) -> None:
        logits[:] = -np.inf
        logits[next(forced)] = 0.0

    options: dict[str, Any] = {"max_tokens": len(ids), "temperature": 0, "logits_processors": [force]}
    whole = model.generate(PROMPT, **options)
    streamed = "".join(chunk.text for chunk in model.stream(PROMPT, **options))
    assert whole.text == streamed == "ab\ufffd"
    assert whole.finish_reason == "length"


def test_reasoning_is_a_kind_of_its_own(bytes_of: Tokenizer) -> None:
    opening, closing = bytes_of.token_id("<think>"), bytes_of.token_id("</think>")
    assert opening is not None
    assert closing is not None
    a, b = bytes_of.token_id("a"), bytes_of.token_id("b")
    assert a is not None
    assert b is not None
    marks = {"think_ids": (opening, closing)}
    pieces, text = assemble(bytes_of, [opening, a, closing, b], **marks)
    assert [piece for piece in pieces if piece[1]] == [("reasoning", "a"), ("text", "b")]
    assert (text.joined("reasoning"), text.joined("text")) == ("a", "b")
    # A prompt that ends with the opening mark starts inside.
    _, text = assemble(bytes_of, [a, closing, b], reasoning=True, **marks)
    assert (text.joined("reasoning"), text.joined("text")) == ("a", "b")
    # Stop strings do not look into reasoning.
    _, text = assemble(bytes_of, [opening, a, closing, b, a], stop=("a",), **marks)
    assert (text.joined("reasoning"), text.joined("text")) == ("a", "b")
    # Without marks the text stays as it is.
    _, text = assemble(bytes_of, [opening, a, closing, b])
    assert text.joined("text") == "<think>a</think>b"


def test_thinking_is_asked_for_by_the_template(model: colibri.Model) -> None:
    thought = model.generate("What is 6 * 7?", think=True, temperature=0, max_tokens=100)
    plain = model.generate("What is 6 * 7?", temperature=0, max_tokens=100)
    assert thought.text.strip() == plain.text == "6 * 7 = 42"
    assert "<think>" not in thought.text + thought.reasoning
    assert thought.stats.prompt_tokens == plain.stats.prompt_tokens - 1


# Stopping.


def test_a_cancelled_generation_returns_what_there_is(model: colibri.Model) -> None:
    cancel = colibri.CancelToken()
    seen = 0
    stream = model.stream(PROMPT, temperature=0, cancel=cancel)
    for chunk in stream:
        seen += chunk.token is not None
        if seen == 3:
            cancel.cancel()
    assert stream.result.finish_reason == "cancelled"
    assert len(stream.result.token_ids) == 3
    assert cancel.cancelled
    early = model.generate(PROMPT + " And a bear.", cancel=cancel)
    assert (early.finish_reason, early.token_ids) == ("cancelled", ())
    assert model.generate(PROMPT, **GREEDY).finish_reason == "length"


def test_another_thread_can_cancel(model: colibri.Model) -> None:
    cancel = colibri.CancelToken()
    started = threading.Event()
    threading.Thread(target=lambda: (started.wait(60), cancel.cancel())).start()

    def wait_for_it(tokens: Any, logits: Any) -> None:
        started.set()

    result = model.generate(
        PROMPT,
        temperature=0,
        max_tokens=1900,
        stop="§",
        cancel=cancel,
        logits_processors=[wait_for_it, _never_end],
    )
    assert result.finish_reason == "cancelled"


def _never_end(tokens: Any, logits: Any) -> None:
    logits[2540:] = -np.inf


def test_a_timeout_ends_at_a_layer_boundary(model: colibri.Model) -> None:
    result = model.generate("A prompt nobody sent before.", timeout=1e-6)
    assert (result.finish_reason, result.token_ids) == ("timeout", ())
    for timeout in (0, -1, float("nan"), float("inf")):
        with pytest.raises(colibri.InvalidValue, match="timeout"):
            model.generate(PROMPT, timeout=timeout)


def test_progress_may_stop_a_generation(model: colibri.Model) -> None:
    events: list[tuple[str, int, int]] = []

    def stop(*event: Any) -> bool:
        events.append(event)
        return False

    result = model.generate("Another prompt nobody sent.", on_progress=stop)
    assert result.finish_reason == "cancelled"
    assert [phase for phase, _, _ in events] == ["prefill"]


def test_closing_a_stream_frees_the_model(model: colibri.Model) -> None:
    with model.stream(PROMPT, temperature=0) as stream:
        while next(stream).token is None:
            pass
    assert stream.result.finish_reason == "cancelled"
    assert len(stream.result.token_ids) == 1
    assert model.generate(PROMPT, **GREEDY).finish_reason == "length"


@pytest.mark.parametrize("kind", [ZeroDivisionError, KeyboardInterrupt])
def test_an_exception_of_a_callback_comes_through(model: colibri.Model, kind: type[BaseException]) -> None:
    def fail(*event: Any) -> None:
        raise kind

    for options in ({"on_progress": fail}, {"logits_processors": [fail]}):
        with pytest.raises(kind):
            model.generate("Yet another prompt nobody sent.", **options)
        assert model.generate(PROMPT, **GREEDY).finish_reason == "length"


def test_an_interrupt_is_seen_inside_the_core(model: colibri.Model) -> None:
    """The signal comes while the core computes; the handler runs when the watcher polls."""
    ids = [2542, 2544, *[300] * 2000]
    where: list[str] = []

    def handler(number: int, frame: Any) -> None:
        where.append(frame.f_code.co_name if frame else "")
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(KeyboardInterrupt):
            _forever(lambda: model.logits(ids))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(where) == 1
    assert model.generate(PROMPT, **GREEDY).finish_reason == "length"


def _forever(work: Callable[[], object]) -> NoReturn:
    while True:
        work()
