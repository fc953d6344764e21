"""Streams that nobody finishes: dropped, left by an exception, held elsewhere; the model is free at once."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Any

import colibri
import pytest

PROMPT = "Tell me a story about a fox."
LONG: dict[str, Any] = {"temperature": 0, "max_tokens": 500}
SHORT: dict[str, Any] = {"temperature": 0, "max_tokens": 3, "wait": False}


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    """What these tests expect must not depend on when the collector of cycles happens to run."""
    gc.disable()
    yield
    gc.enable()


def abandon(model: colibri.Model, how: str) -> None:
    if how == "break":
        for _ in model.stream(PROMPT, **LONG):
            break
    elif how == "next":
        next(model.stream(PROMPT, **LONG))
    elif how == "del":
        stream = model.stream(PROMPT, **LONG)
        next(stream)
        del stream
    elif how == "exception":
        with contextlib.suppress(ZeroDivisionError):
            for _ in model.stream(PROMPT, **LONG):
                raise ZeroDivisionError
    elif how == "session":
        for _ in model.session().stream(PROMPT, **LONG):
            break
    elif how == "completion":
        messages = [{"role": "user", "content": PROMPT}]
        for _ in model.create_chat_completion(messages, stream=True, **LONG):
            break
    elif how == "processors":
        for chunk in model.stream(PROMPT, logits_processors=[lambda tokens, logits: None], **LONG):
            if chunk.token is not None:
                break


WAYS = ("break", "next", "del", "exception", "session", "completion", "processors")


@pytest.mark.parametrize("how", WAYS)
def test_a_stream_that_is_let_go_frees_the_model_at_once(model: colibri.Model, how: str) -> None:
    abandon(model, how)
    assert len(model.generate(PROMPT, **SHORT).token_ids) == 3


@pytest.mark.parametrize("how", WAYS)
def test_a_stream_that_another_thread_lets_go_frees_the_model(model: colibri.Model, how: str) -> None:
    thread = threading.Thread(target=abandon, args=(model, how))
    thread.start()
    thread.join()
    assert len(model.generate(PROMPT, **SHORT).token_ids) == 3


def held_by_another_thread(model: colibri.Model) -> colibri.Stream:
    stream = model.stream(PROMPT, **LONG)
    thread = threading.Thread(target=next, args=(stream,))
    thread.start()
    thread.join()
    return stream


def test_the_timeout_covers_the_wait_for_the_model(model: colibri.Model) -> None:
    stream = held_by_another_thread(model)
    waiting = [model.generate(PROMPT, max_tokens=3, timeout=0.2), model.session().chat(PROMPT, timeout=0.2)]
    for result in waiting:
        assert (result.finish_reason, result.token_ids) == ("timeout", ())
    stream.close()
    assert len(model.generate(PROMPT, **SHORT).token_ids) == 3


def test_a_cancel_token_ends_the_wait_for_the_model(model: colibri.Model) -> None:
    stream = held_by_another_thread(model)
    token = colibri.CancelToken()
    threading.Timer(0.1, token.cancel).start()
    result = model.generate(PROMPT, max_tokens=3, cancel=token)
    assert (result.finish_reason, result.token_ids) == ("cancelled", ())
    stream.close()


def test_a_wait_that_ends_in_time_loses_nothing(model: colibri.Model) -> None:
    expected = model.generate(PROMPT, **SHORT).token_ids
    stream = held_by_another_thread(model)
    threading.Timer(0.1, stream.close).start()
    assert model.generate(PROMPT, temperature=0, max_tokens=3, timeout=60).token_ids == expected


def test_a_turn_given_up_while_waiting_is_not_part_of_the_conversation(model: colibri.Model) -> None:
    stream = held_by_another_thread(model)
    session = model.session()
    session.chat(PROMPT, timeout=0.1)
    assert session.turns == 0
    stream.close()
    assert session.chat(PROMPT, temperature=0, max_tokens=3).token_ids
