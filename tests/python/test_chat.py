"""Conversations: turns, prefix reuse, resumption, and the OpenAI shape."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from typing import Any

import colibri
import numpy as np
import pytest
from colibri import Grammar
from colibri.request import GenerationOptions

PROMPT = "Write a story about a fox."
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather for a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


# Conversations.


@pytest.fixture
def session(model: colibri.Model) -> Iterator[colibri.Session]:
    with model.session() as opened:
        yield opened


def test_a_conversation_remembers(session: colibri.Session) -> None:
    session.chat("My name is Anna.", temperature=0)
    first = len(session)
    answer = session.chat("What is my name?", temperature=0)
    assert answer.text == "Your name is Anna."
    assert 0 < first <= answer.stats.cached_tokens
    assert session.turns == 2
    assert [message["role"] for message in session.messages] == ["user", "assistant"] * 2


def test_a_conversation_equals_its_messages(model: colibri.Model, session: colibri.Session) -> None:
    session.system = "Be brief."
    for text in ("Hello", "Tell me a short story about a robot named Bingo."):
        answer = session.chat(text, **GREEDY)
    messages = [{"role": "system", "content": "Be brief."}, *session.messages[:-1]]
    with model.session():  # gives the model's own cache back, so the next run is cold
        pass
    cold = model.generate(messages=messages, **GREEDY)
    assert cold.stats.cached_tokens == 0
    assert cold.token_ids == answer.token_ids


def test_rewind_takes_turns_back(session: colibri.Session) -> None:
    first = session.chat("Hello", **GREEDY)
    second = session.chat(PROMPT, **GREEDY)
    session.rewind(turns=1)
    assert session.turns == 1
    again = session.chat(PROMPT, **GREEDY)
    assert again.token_ids == second.token_ids
    assert again.stats.cached_tokens == again.stats.prompt_tokens - 1
    session.clear()
    assert session.turns == 0
    assert session.chat("Hello", **GREEDY).token_ids == first.token_ids
    for turns in (-1, 2, True, "1"):
        with pytest.raises(colibri.InvalidValue, match="turns"):
            session.rewind(turns)  # type: ignore[arg-type]


def test_an_answer_cut_by_its_limit_can_be_continued(session: colibri.Session) -> None:
    whole = session.chat(PROMPT, temperature=0, max_tokens=40)
    session.rewind()
    cut = session.chat(PROMPT, temperature=0, max_tokens=15)
    assert cut.finish_reason == "length"
    rest = session.resume(temperature=0, max_tokens=25).finish()
    assert cut.token_ids + rest.token_ids == whole.token_ids
    assert session.turns == 1
    assert session.messages[-1]["content"] == whole.text


def test_a_continued_answer_keeps_its_grammar(session: colibri.Session) -> None:
    digits = Grammar.from_gbnf("root ::= [0-9]{30}")
    session.chat("Hello", grammar=digits, max_tokens=4, temperature=0)
    again = session.resume(max_tokens=4, temperature=0).finish()
    assert again.complete is False
    last = session.resume(temperature=0).finish()
    assert last.complete is True
    whole = session.messages[-1]["content"]
    assert len(whole) == 30
    assert whole.isdecimal()
    with pytest.raises(colibri.InvalidValue, match="nothing to continue"):
        session.resume()


def test_a_continued_answer_may_let_go_of_its_grammar_or_take_another(session: colibri.Session) -> None:
    words = Grammar.from_gbnf("root ::= [A-Za-z ,.]{200}")
    session.chat(PROMPT, grammar=words, max_tokens=4, temperature=0)
    freed = session.resume(grammar=None, max_tokens=4, temperature=0).finish()
    assert freed.complete is None
    # It stays free.
    assert session.resume(max_tokens=4, temperature=0).finish().complete is None
    digits = Grammar.from_gbnf("root ::= [0-9]{30}")
    session.chat("Hello", grammar=digits, max_tokens=4, temperature=0)
    longer = Grammar.from_gbnf("root ::= [0-9]{40}")
    session.resume(grammar=longer, temperature=0).finish()
    assert len(session.messages[-1]["content"]) == 40


def test_a_continued_answer_keeps_its_tools(session: colibri.Session) -> None:
    given: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "get_weather"}
    cut = session.chat("What is the weather in Rome?", temperature=0, max_tokens=3, **given)
    assert cut.finish_reason == "length"
    rest = session.resume(temperature=0).finish()
    assert rest.finish_reason == "tool_calls"
    assert rest.tool_calls[0]["function"]["name"] == "get_weather"


def test_a_draft_stays_one_when_it_is_continued(session: colibri.Session) -> None:
    digits = Grammar.from_gbnf("root ::= [0-9]{30}")
    whole = session.chat(PROMPT, temperature=0, max_tokens=12)
    session.rewind()
    session.chat(PROMPT, temperature=0, max_tokens=6, grammar=digits, grammar_mode="draft")
    session.resume(temperature=0, max_tokens=6).finish()
    assert session.messages[-1]["content"] == whole.text


def test_nothing_to_continue(session: colibri.Session) -> None:
    with pytest.raises(colibri.InvalidValue, match="nothing to continue"):
        session.resume()
    session.chat("Hello", temperature=0)
    with pytest.raises(colibri.InvalidValue, match="nothing to continue"):
        session.resume()


def test_a_stopped_prefill_leaves_the_conversation_as_it_was(session: colibri.Session) -> None:
    session.chat("Hello", **GREEDY)
    cancel = colibri.CancelToken()
    cancel.cancel()
    assert session.chat(PROMPT, cancel=cancel).finish_reason == "cancelled"
    assert session.turns == 1
    with pytest.raises(ZeroDivisionError):
        session.chat(PROMPT, logits_processors=[lambda tokens, logits: 1 / 0])
    assert session.turns == 1
    assert session.chat(PROMPT, **GREEDY).token_ids


def test_a_stopped_answer_is_kept(session: colibri.Session) -> None:
    with session.stream(PROMPT, temperature=0) as stream:
        for chunk in stream:
            if len(chunk.text.strip()) > 1:
                break
    assert session.turns == 1
    assert session.messages[-1]["content"] == stream.result.text != ""


def test_ct_09_reuse_goes_to_the_last_common_token(model: colibri.Model) -> None:
    """The template writes a newline that the model did not: only what follows it is computed again."""
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
    ask = [{"role": "user", "content": "What is the weather in Oslo?"}]
    first = model.tokenizer.encode(model.template.render(ask, tools=tools, enable_thinking=False))
    reply = model.tokenizer.encode("</think><tool_call>get_weather<arg_key>city</arg_key>")
    forced = iter(reply)

    def force(tokens: Any, logits: Any) -> None:
        logits[:] = -np.inf
        logits[next(forced)] = 0.0

    model.generate(tokens=first, max_tokens=len(reply), temperature=0, logits_processors=[force])
    call = {"type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    history = [
        *ask,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "sunny"},
    ]
    second = model.tokenizer.encode(model.template.render(history, tools=tools, enable_thinking=False))
    warm = model.generate(tokens=second, **GREEDY)
    assert second[: len(first)] == first
    assert warm.stats.cached_tokens >= len(first)
    with model.session():
        pass
    cold = model.generate(tokens=second, **GREEDY)
    assert cold.stats.cached_tokens == 0
    assert warm.token_ids == cold.token_ids


def test_a_conversation_takes_the_results_of_calls(model: colibri.Model, session: colibri.Session) -> None:
    given: dict[str, Any] = {"tools": [WEATHER], "temperature": 0}
    asked = session.chat("What is the weather in Rome?", **given)
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "sunny, 24 degrees"}
        for call in asked.tool_calls
    ]
    told = session.chat(results, max_tokens=24, **given)
    assert [one["role"] for one in session.messages] == ["user", "assistant", "tool", "assistant"]
    assert session.messages[2] == results[0]
    assert session.turns == 2
    assert told.stats.cached_tokens > 0
    with model.session():  # gives the model's own cache back, so the next run is cold
        pass
    cold = model.generate(messages=session.messages[:-1], max_tokens=24, **given)
    assert cold.token_ids == told.token_ids
    # A single message, streamed.
    with session.stream({"role": "user", "content": "Thanks"}, **GREEDY) as stream:
        list(stream)
    assert session.turns == 3
    results[0]["content"] = "changed later"
    assert session.messages[2]["content"] == "sunny, 24 degrees"


def test_rewind_takes_back_turns_of_several_messages(session: colibri.Session) -> None:
    given: dict[str, Any] = {"tools": [WEATHER], "temperature": 0}
    session.chat("What is the weather in Rome?", **given)
    two = [{"role": "tool", "content": "sunny"}, {"role": "user", "content": "And what is 6 * 7?"}]
    first = session.chat(two, max_tokens=16, **given)
    session.chat("Hello", **GREEDY)
    assert session.turns == 3
    session.rewind()
    assert [one["role"] for one in session.messages] == ["user", "assistant", "tool", "user", "assistant"]
    session.rewind()
    assert [one["role"] for one in session.messages] == ["user", "assistant"]
    assert session.chat(two, max_tokens=16, **given).token_ids == first.token_ids
    session.rewind(2)
    assert session.messages == []
    assert session.turns == 0


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ([], "a list of messages"),
        (3, "a list of messages"),
        (b"Hello", "a list of messages"),
        ([{"role": "system", "content": "Be brief."}], "session.system"),
        ({"role": "assistant", "content": "Hello"}, "answers come from the model"),
        ({"role": "usr", "content": "Hello"}, "did you mean 'user'?"),
        ([{"role": "user", "content": "Hello"}, {"role": "tool"}], "messages[1].content"),
        ("  ", "the prompt is empty"),
    ],
)
def test_a_message_that_cannot_be_sent_is_refused(session: colibri.Session, message: Any, hint: str) -> None:
    with pytest.raises(colibri.InvalidValue) as caught:
        session.chat(message, **GREEDY)
    assert hint in str(caught.value)
    assert session.turns == 0


def test_a_closed_session_is_a_value_error(model: colibri.Model) -> None:
    session = model.session()
    session.chat("Hello", **GREEDY)
    session.close()
    session.close()
    assert len(session) == 0
    with pytest.raises(ValueError, match="closed"):
        session.chat("Hello")
    assert "closed" in repr(session)


# The OpenAI shape.


def test_chat_completions(model: colibri.Model) -> None:
    messages = [{"role": "user", "content": "What is 6 * 7?"}]
    answer = model.create_chat_completion(messages, temperature=0, max_tokens=50)
    assert answer["object"] == "chat.completion"
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "6 * 7 = 42"}
    assert choice["finish_reason"] == "stop"
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    chunks = list(model.create_chat_completion(messages, stream=True, temperature=0, max_tokens=50))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == "6 * 7 = 42"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["completion_tokens"] == usage["completion_tokens"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    json.dumps([answer, *chunks])
    with pytest.raises(TypeError, match="functions"):
        model.create_chat_completion(messages, functions=[])  # type: ignore[call-overload]


def test_every_option_is_documented() -> None:
    text = inspect.getdoc(GenerationOptions) or ""
    params = inspect.getdoc(colibri.SamplingParams) or ""
    for name in GenerationOptions.__annotations__:
        assert f"{name}:" in text + params
