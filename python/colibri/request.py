"""Requests: what a caller asks of one generation, checked and completed before anything runs.

Owns the options of every generating call, the tokens of a prompt, and the join of parameters, options and the
model's defaults. Refuses unknown options, values outside their range, and prompts that are empty or longer
than the context. What must hold: a `Request` can be run without looking at anything else but the model.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from colibri.engine import CancelToken, Engine, ProgressCallback, watch
from colibri.errors import ColibriError, error, invalid_value
from colibri.grammar import Grammar
from colibri.guide import DRAFT_DEFAULT, Guidance, guidance
from colibri.sampling import BUILT_IN, ModelDefaults, SamplingOverrides, SamplingParams, check_names
from colibri.setting_kinds import REASONING_EFFORTS, WHITESPACES
from colibri.tokenizer import Tokenizer
from colibri.tools import Framing, ToolSet, tool_set

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from colibri.results import Result

    LogitsProcessor = Callable[[NDArray[np.int32], NDArray[np.float32]], None]


class GenerationOptions(SamplingOverrides, total=False):
    """Keyword arguments of every call that generates.

    Attributes:
        stop: a text, or texts, that end the answer; they are not part of it.
        timeout: seconds after which the generation stops at a layer boundary, with `finish_reason` `timeout`.
            They cover the wait for the model and finding the tokens of the prompt; when they end before the
            tokens are known, the call raises `Cancelled` with the code `timeout`.
        cancel: a token with which another thread or a signal handler stops the generation.
        logits_processors: functions `f(tokens, logits)` that change the row of logits in place, after the
            penalties.
        on_progress: called with phase, done and total at most ten times a second; returning False stops.
        wait: whether to wait for another thread's generation; otherwise that is `Busy`.
        think: whether the template asks the model to reason first; None means: if an effort is asked for.
        reasoning_effort: how much: `low`, `medium`, `high` or `max`; None leaves it to the template.
        grammar: the `Grammar` of the whole answer, without its reasoning.
        tools: functions that the model may call, in the OpenAI format, or a `ToolSet`; the template shows
            them to the model, and calls are bound to their schemas.
        tool_choice: `auto`, `required` (the answer is calls alone), `none`, or the name of a function, also
            in the OpenAI form; None is `auto`.
        parallel_tool_calls: whether one answer may hold several calls.
        tools_lenient: whether what cannot be enforced of the tools' schemas is ignored.
        json_whitespace: `compact` or `flexible`, for JSON values in calls.
        grammar_mode: `constrain`, or `draft`: the model is free, and what the grammar forces is only
            proposed.
        draft: whether forced text is drafted, for several tokens a pass: `auto` (while it pays), `off`,
            `grammar` (always). It changes times, never tokens.
        draft_max: the most tokens of one draft, 1 to 63.
    """

    stop: str | Sequence[str]
    timeout: float | None
    cancel: CancelToken | None
    logits_processors: Sequence[LogitsProcessor]
    on_progress: ProgressCallback | None
    wait: bool
    think: bool | None
    reasoning_effort: str | None
    grammar: Grammar | None
    tools: Sequence[Mapping[str, Any]] | ToolSet | None
    tool_choice: str | Mapping[str, Any] | None
    parallel_tool_calls: bool
    tools_lenient: bool
    json_whitespace: str
    grammar_mode: str
    draft: str
    draft_max: int


_OPTION_NAMES = tuple(GenerationOptions.__annotations__)
# What says which texts an answer may be, and how that is followed.
_TOOL_NAMES = ("tools", "tool_choice", "parallel_tool_calls", "tools_lenient", "json_whitespace")
_STRUCTURE_NAMES = ("grammar", *_TOOL_NAMES, "grammar_mode", "draft", "draft_max")
_SAMPLING_NAMES = tuple(SamplingOverrides.__annotations__)


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """Everything one generation needs, checked.

    Attributes:
        prompt: token ids, at least one.
        params: sampling parameters without gaps.
        stop_ids: end tokens; stop: stop strings.
        cancel: tokens that stop it.
        think_ids: the ids of the thinking marks, or None to leave them in the text.
        reasoning: whether the prompt ends inside a thinking block; of an answer that is continued, the prompt
            before that answer.
        guidance: the grammar of the answer, or None.
        tools: the functions whose calls are looked for in the answer, or None.
        continues: the answer with whose tokens the prompt ends, for one that is continued.
    """

    prompt: Sequence[int]
    params: SamplingParams
    stop_ids: frozenset[int]
    stop: tuple[str, ...] = ()
    timeout: float | None = None
    cancel: tuple[CancelToken, ...] = ()
    logits_processors: tuple[LogitsProcessor, ...] = ()
    on_progress: ProgressCallback | None = None
    wait: bool = True
    think_ids: tuple[int, int] | None = None
    reasoning: bool = False
    guidance: Guidance | None = None
    tools: ToolSet | None = None
    continues: Result | None = None


def check_options(options: GenerationOptions, params: object, known: Sequence[str] = ()) -> None:
    """Checks what a generating call was given before anything is done with it.

    Raises:
        TypeError: a keyword that no generating call knows; the message suggests the nearest one.
        InvalidValue: `params`, `think`, `wait` or `reasoning_effort` is of another kind.
    """
    check_names(options, (*known, *_OPTION_NAMES))
    if params is not None and not isinstance(params, SamplingParams):
        raise invalid_value("params", params, "a SamplingParams, or None")
    if not isinstance(options.get("think"), (bool, NoneType)):
        raise invalid_value("think", options.get("think"), "True, False or None")
    for name in ("wait", "parallel_tool_calls", "tools_lenient"):
        if not isinstance(options.get(name, True), bool):
            raise invalid_value(name, options.get(name), "True or False")
    if options.get("reasoning_effort") not in (None, *REASONING_EFFORTS):
        expected = f"one of {', '.join(map(repr, REASONING_EFFORTS))}, or None"
        raise invalid_value("reasoning_effort", options.get("reasoning_effort"), expected)
    if options.get("json_whitespace", "compact") not in WHITESPACES:
        expected = f"one of {', '.join(map(repr, WHITESPACES))}"
        raise invalid_value("json_whitespace", options.get("json_whitespace"), expected)
    # With the choice `none` the tools are no part of the answer.
    calls = options.get("tools") is not None and options.get("tool_choice") != "none"
    if options.get("grammar") is not None and calls:
        raise error(
            "invalid_value",
            "both grammar and tools are given",
            "tools come with a grammar of their own: that of their calls",
            "leave one of them out",
        )


def thinks(options: GenerationOptions) -> bool:
    """Whether the model is asked to reason: said, or implied by an effort."""
    think = options.get("think")
    return options.get("reasoning_effort") is not None if think is None else think


def tools_of(options: GenerationOptions) -> ToolSet | None:
    """The tools that the model may call, checked; None without any, and with the choice `none`."""
    tools = options.get("tools")
    return None if tools is None or options.get("tool_choice") == "none" else tool_set(tools)


def carried_options(before: GenerationOptions, options: GenerationOptions) -> GenerationOptions:
    """The options of a continued answer: where they say nothing of it, its grammar or tools go on.

    Args:
        before: the options with which the answer was begun.
        options: those of the continuation, which win.
    """
    carried: dict[str, Any] = {name: value for name, value in before.items() if name in _STRUCTURE_NAMES}
    # A grammar takes the place of tools, and tools that of a grammar.
    if options.get("grammar") is not None:
        carried = {name: value for name, value in carried.items() if name not in _TOOL_NAMES}
    if options.get("tools") is not None:
        carried.pop("grammar", None)
    return cast("GenerationOptions", {**carried, **options})


def guidance_of(
    options: GenerationOptions, framing: Framing | None
) -> tuple[Guidance | None, ToolSet | None]:
    """The grammar of the answer that the options ask for, and the tools whose calls it may hold.

    Args:
        options: the options; framing: the white space of the model's calls.

    Raises:
        InvalidValue: an option is not understood.
        GrammarError: a tool's schema asks for what cannot be enforced.
    """
    grammar, tools = options.get("grammar"), tools_of(options)
    if tools is not None:
        grammar = Grammar.from_tools(
            tools,
            choice=options.get("tool_choice"),
            parallel=options.get("parallel_tool_calls", True),
            lenient=options.get("tools_lenient", False),
            whitespace=options.get("json_whitespace", "compact"),
            framing=framing,
        )
    mode, draft = options.get("grammar_mode", "constrain"), options.get("draft", "auto")
    given = guidance(grammar, mode, draft, options.get("draft_max", DRAFT_DEFAULT))
    return given, tools


class Encoded(NamedTuple):
    """The tokens of a prompt, and the seconds it took to find them."""

    ids: list[int]
    seconds: float


def check_length(engine: Engine, tokenizer: Tokenizer, texts: Iterable[str]) -> None:
    """Refuses texts that are longer than the context, whatever their tokens are; costs next to nothing.

    Raises:
        ContextError: there are too many.
    """
    least = sum(map(tokenizer.least_tokens, texts))
    if least > engine.plan.context:
        raise too_long(least, engine, "at least ")


def encode_prompt(
    engine: Engine,
    tokenizer: Tokenizer,
    text: str,
    options: GenerationOptions,
    *,
    add_special_tokens: bool = False,
) -> Encoded:
    """The tokens of a prompt. Signals, the timeout and the cancel token of the options end a long search.

    Raises:
        ContextError: the text is longer than the context, whatever its tokens are.
        Cancelled: it was stopped; with the code `timeout` by the clock.
    """
    cancel, timeout = options.get("cancel"), options.get("timeout")
    watch((cancel,) if cancel is not None else (), timeout, None)
    check_length(engine, tokenizer, [text])
    start = time.monotonic()

    def check() -> None:
        if cancel is not None and cancel.cancelled:
            raise error("cancelled", "the prompt was not yet turned into tokens")
        if timeout is not None and time.monotonic() - start >= timeout:
            raise error(
                "timeout", f"the timeout of {timeout:g} s passed", "the prompt was not yet turned into tokens"
            )

    ids = tokenizer.encode(text, add_special_tokens=add_special_tokens, check=check)
    return Encoded(ids, time.monotonic() - start)


def build_request(
    prompt: Sequence[int] | Encoded,
    params: SamplingParams | None,
    options: GenerationOptions,
    defaults: ModelDefaults,
    framing: Framing | None = None,
    **extra: Any,
) -> Request:
    """Joins parameters, options and the model's defaults; `extra` sets further fields of the request.

    The time that encoding the prompt took counts towards the timeout.

    Raises:
        InvalidValue: a value is out of range, or the prompt is empty.
    """
    overrides: dict[str, Any] = {name: value for name, value in options.items() if name in _SAMPLING_NAMES}
    complete = (params or SamplingParams()).override(overrides).or_else(defaults.params).or_else(BUILT_IN)
    if complete.seed is None:
        # 32 bits survive every JSON reader.
        complete = dataclasses.replace(complete, seed=int.from_bytes(os.urandom(4), "little"))
    ids, spent = prompt if isinstance(prompt, Encoded) else (prompt, 0.0)
    if not ids:
        raise empty_prompt()
    cancel, timeout = options.get("cancel"), options.get("timeout")
    given, tools = guidance_of(options, framing)
    # Refused now, not at the first chunk.
    watch((cancel,) if cancel is not None else (), timeout, options.get("on_progress"))
    return Request(
        prompt=ids,
        params=complete,
        stop=_stop_strings(options.get("stop")),
        timeout=None if timeout is None else max(timeout - spent, 0.001),
        cancel=(cancel,) if cancel is not None else (),
        logits_processors=_processors(options.get("logits_processors")),
        on_progress=options.get("on_progress"),
        wait=options.get("wait", True),
        guidance=given,
        tools=tools,
        **extra,
    )


def check_text(name: str, text: object) -> str:
    """The text of a prompt; an `InvalidValue` when it is none, or holds nothing."""
    if not isinstance(text, str):
        raise invalid_value(name, text, "a text")
    if not text.strip():
        raise empty_prompt()
    return text


def empty_prompt() -> ColibriError:
    """The error for a prompt without anything in it."""
    return error(
        "invalid_value", "the prompt is empty", "a model continues at least one token", "give it some text"
    )


def _stop_strings(value: object) -> tuple[str, ...]:
    expected = "a text or a list of texts, none of them empty"
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, Sequence) or isinstance(value, (bytes, bytearray)):
        raise invalid_value("stop", value, expected)
    for index, text in enumerate(value):
        if not isinstance(text, str) or not text:
            raise invalid_value(f"stop[{index}]", text, expected)
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise invalid_value(f"stop[{index}]", text, "made of characters, without lone surrogates")
    return tuple(value)


def _processors(value: object) -> tuple[LogitsProcessor, ...]:
    expected = "a list of functions of tokens and logits"
    if value is None:
        return ()
    if not isinstance(value, Sequence):
        raise invalid_value("logits_processors", value, expected)
    for index, processor in enumerate(value):
        if not callable(processor):
            raise invalid_value(f"logits_processors[{index}]", processor, expected)
    return tuple(value)


def too_long(tokens: int, engine: Engine, at_least: str = "") -> ColibriError:
    """The error for a prompt that does not fit the context."""
    context_max = engine.info.context_max
    if tokens <= context_max:
        fix = f"--ctx {tokens} or more (it takes memory), or send less"
    else:
        fix = f"send less: the model was made for at most {context_max:,} tokens"
    return error(
        "context_length_exceeded",
        f"the prompt is {at_least}{tokens:,} tokens; the context is {engine.plan.context:,}",
        "nothing was cut: a shortened prompt gives wrong answers",
        fix,
    )
