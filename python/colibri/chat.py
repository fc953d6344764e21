"""A conversation: messages, their rendering, and the KV cache that grows with them.

Owns the list of messages and what counts as a turn: what was sent, a text or the results of calls, with its
answer. Refuses to guess a format: the model's own template renders everything. What must hold: messages are
kept only together with their answer; a prompt is always the rendering of the whole list, and what it shares
with the tokens in the cache is not computed again, so the answer equals that of a fresh session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Unpack, cast

from colibri.closing import Handle
from colibri.errors import error, invalid_value
from colibri.generation import KvCache, Stream
from colibri.request import (
    GenerationOptions,
    Request,
    build_request,
    carried_options,
    check_length,
    check_options,
    check_text,
    encode_prompt,
    thinks,
    tools_of,
)
from colibri.results import Result
from colibri.sampling import SamplingParams
from colibri.template import prepare_messages, user_texts

if TYPE_CHECKING:
    from colibri.engine import Engine
    from colibri.model_folder import ModelFolder
    from colibri.template import Message


_FINISHED: Final = ("stop", "tool_calls")
"""Ends behind which nothing follows, under a grammar."""
_ENDS: Final = (*_FINISHED, "length")
"""Ends after which an answer without a token is one, too."""

_SENT_ROLES: Final = ("user", "tool")
"""Roles of the messages that are sent: answers come from the model, and the system message has its place."""


def chat_request(
    engine: Engine,
    folder: ModelFolder,
    messages: Sequence[Message],
    params: SamplingParams | None,
    options: GenerationOptions,
) -> Request:
    """The request for an answer to a conversation, reasoning split off."""
    # Asked for first: without a tokenizer no text is possible, with or without a template.
    tokenizer = folder.tokenizer
    # What is far too long is refused before the template works on it.
    check_length(engine, tokenizer, user_texts(messages))
    tools = tools_of(options)
    text = folder.render(
        messages,
        think=thinks(options),
        reasoning_effort=options.get("reasoning_effort"),
        tools=None if tools is None else tools.definitions,
    )
    return build_request(
        encode_prompt(engine, tokenizer, text, options),
        params,
        options,
        folder.defaults,
        None if tools is None else folder.call_framing,
        stop_ids=folder.stop_ids,
        think_ids=folder.think_ids,
        reasoning=text.rstrip().endswith("<think>"),
    )


class Session(Handle):
    """A conversation with its own KV cache; made by `Model.session`."""

    def __init__(self, engine: Engine, folder: ModelFolder, system: str | None) -> None:
        self._engine = engine
        self._folder = folder
        self.system = system
        self._messages: list[Message] = []
        # Where each turn begins in the messages.
        self._starts: list[int] = []
        self._cache = KvCache(engine)
        # How the last answer was asked for, and that answer.
        self._last: tuple[Request, GenerationOptions] | None = None
        self._answer: Result | None = None
        self._closed = False

    @property
    def system(self) -> str | None:
        """The system message, or None. Setting it keeps the turns; the next prompt is computed anew."""
        return self._system

    @system.setter
    def system(self, text: str | None) -> None:
        if text is not None and not isinstance(text, str):
            raise invalid_value("system", text, "a text, or None")
        self._system = text

    @property
    def messages(self) -> list[Message]:
        """A copy of the turns, the system message not included."""
        return list(self._messages)

    @property
    def turns(self) -> int:
        """Number of answers."""
        return len(self._starts)

    def __len__(self) -> int:
        """Tokens in the KV cache."""
        return len(self._cache)

    def stream(
        self,
        message: str | Message | Sequence[Message],
        params: SamplingParams | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Stream:
        """Sends a message and streams the answer; the options are those of `Model.generate`.

        The message and its answer, which make a turn, join the conversation when the stream ends, or is
        closed after at least one token. A stream stopped during prefill leaves the conversation as it was;
        what was computed is kept, so sending the same again continues there.

        Args:
            message: a text; or a message in the OpenAI format, or a list of them, with the roles `user` and
                `tool`: the results of the calls in the last answer are sent as
                `{"role": "tool", "tool_call_id": call["id"], "content": ...}` each.
            params: sampling parameters; keyword arguments override its fields.
            **options: the options; the grammar and the tools of an earlier turn do not hold for this one.

        Raises:
            TypeError, InvalidValue: an option is unknown or out of range, or a message is malformed.
            ContextError: the conversation is longer than the context.
        """
        check_options(options, params)
        self._check_open()
        sent = _sent(message)
        request = chat_request(self._engine, self._folder, self._conversation(sent), params, options)

        def remember(result: Result) -> None:
            if result.token_ids or result.finish_reason in _ENDS:
                self._starts.append(len(self._messages))
                self._messages += [*sent, _answer(result)]
                self._last, self._answer = (request, options), result

        return self._start(request, remember)

    def chat(
        self,
        message: str | Message | Sequence[Message],
        params: SamplingParams | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Result:
        """Sends a message and returns the whole answer; see `stream`."""
        return self.stream(message, params, **options).finish()

    def resume(self, params: SamplingParams | None = None, **options: Unpack[GenerationOptions]) -> Stream:
        """Continues the last answer where it stopped, after `length`, `timeout` or `cancelled`.

        Where they are not given, the grammar or the tools of the answer, and the options that go with them,
        stay what they were; `grammar=None` and `tools=None` let go of them. The other options are not kept.

        The chunks and the result are the continuation; the answer in the conversation becomes the whole. The
        beginning of a call, which was text while the call was cut, leaves the answer's text with the call's
        end.

        Raises:
            InvalidValue: there is no answer, or it had come to its end.
        """
        check_options(options, params)
        self._check_open()
        answer = self._answer
        # Under a grammar an answer has also ended with its last byte, or with a stop string: what that cut
        # off is missing in the text, and what follows would not fit it.
        ended = answer is not None and answer.complete is not None and answer.finish_reason in _FINISHED
        if self._last is None or answer is None or answer.stop_token is not None or ended:
            raise error(
                "invalid_value",
                "there is nothing to continue",
                "the last answer came to its end, or there is none",
                "send a message",
            )
        last, before = self._last
        options = carried_options(before, options)
        check_options(options, params)
        folder = self._folder
        request = build_request(
            [*last.prompt, *answer.token_ids],
            params,
            options,
            folder.defaults,
            None if tools_of(options) is None else folder.call_framing,
            stop_ids=folder.stop_ids,
            think_ids=folder.think_ids,
            reasoning=last.reasoning,
            continues=answer,
        )

        def remember(whole: Result) -> None:
            if len(whole.token_ids) > len(answer.token_ids) or whole.finish_reason in _ENDS:
                self._messages[-1] = _answer(whole)
                self._last, self._answer = (last, options), whole

        return self._start(request, remember)

    def rewind(self, turns: int = 1) -> None:
        """Takes back the last turns: what was sent, with its answers. A call's result is a turn of its own.

        Raises:
            InvalidValue: there are fewer turns.
        """
        if isinstance(turns, bool) or not isinstance(turns, int) or not 0 <= turns <= self.turns:
            raise invalid_value("turns", turns, f"an integer from 0 to {self.turns}")
        if turns:
            del self._messages[self._starts[-turns] :], self._starts[-turns:]
            self._last = self._answer = None

    def clear(self) -> None:
        """Takes back all turns; the system message stays."""
        self.rewind(self.turns)

    def close(self) -> None:
        """Frees the KV cache. May be called again; other use afterwards is a `ValueError`."""
        self._closed = True
        self._cache.drop()

    def _conversation(self, sent: Sequence[Message]) -> list[Message]:
        system: list[Message] = [{"role": "system", "content": self._system}] if self._system else []
        return [*system, *self._messages, *sent]

    def _start(self, request: Request, remember: Callable[[Result], None]) -> Stream:
        return Stream(self._engine, self._cache, request, self._folder.tokenizer, remember)

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the session is closed")
        self._engine.native()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.turns} turns, {len(self)} tokens"
        return f"Session({self._engine.info.name!r}, {state})"


def _sent(message: object) -> list[Message]:
    """The messages of a turn, checked, and copied: what the caller does with its own changes no history."""
    if isinstance(message, str):
        return [{"role": "user", "content": check_text("message", message)}]
    messages = [message] if isinstance(message, Mapping) else message
    if isinstance(messages, (bytes, bytearray)) or not isinstance(messages, Sequence) or not messages:
        raise invalid_value("message", message, "a text, a message, or a list of messages")
    for index, one in enumerate(messages):
        role = one.get("role") if isinstance(one, Mapping) else None
        if role in ("system", "assistant"):
            raise error(
                "invalid_value",
                f"messages[{index}].role is {role!r}",
                "answers come from the model, and the system message stands before all turns",
                "send messages with the roles 'user' and 'tool'; set session.system; or take "
                "Model.generate(messages=[...]) for a conversation of your own",
            )
    prepare_messages(messages, roles=_SENT_ROLES)
    return [dict(one) for one in cast("Sequence[Message]", messages)]


def _answer(result: Result) -> Message:
    """The message that a result adds to the conversation."""
    message: dict[str, Any] = {"role": "assistant", "content": result.text}
    if result.reasoning:
        message["reasoning_content"] = result.reasoning
    if result.tool_calls:
        message["tool_calls"] = list(result.tool_calls)
    return message
