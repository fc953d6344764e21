"""Chat templates: the model's own Jinja template, rendered in a sandbox that is bounded in time and size.

Owns finding the template of a model folder, rendering it, and the preparation of messages that every template
relies on (arguments of tool calls as mappings, reasoning in its own field). Refuses templates that do not
parse, with their line, and never falls back to another model's format. What must hold: a template comes from
a stranger, so `template_sandbox` bounds its time and its size.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from colibri.errors import ColibriError, error, invalid_value
from colibri.files import read_file, reason
from colibri.json_file import read_json_object

if TYPE_CHECKING:
    import jinja2

    from colibri.template_sandbox import Sandbox

FILE_LIMIT: Final = 1 << 20
"""The largest template file that is read, in bytes."""

# What expressions of a template raise by themselves.
_TEMPLATE_FAULTS: Final = (ArithmeticError, LookupError, TypeError, ValueError, AttributeError)

ROLES: Final = ("system", "user", "assistant", "tool")
"""The roles every template is expected to know."""

_NAMED_ROLE: Final = re.compile(r"""role['"\]]*\s*[!=]=\s*['"](\w+)['"]""")

Message = Mapping[str, Any]


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, source: str, name: str, special_tokens: Mapping[str, Any] | None = None) -> None:
        """Compiles a template.

        Args:
            source: the Jinja text.
            name: where it comes from, for messages.
            special_tokens: variables such as `bos_token` that templates may use.

        Raises:
            ModelError: `template_invalid`, with the line, when it does not parse.
        """
        self._name = name
        self._special_tokens = dict(special_tokens or {})
        # Reasoning is split off only for templates that know the field; others expect it in the text.
        self._knows_reasoning = "reasoning_content" in source
        # A template that knows more roles than the usual ones compares with their names.
        self._roles = tuple(dict.fromkeys((*ROLES, *_NAMED_ROLE.findall(source))))
        self._template, self._sandbox = _compile(source, name)

    @staticmethod
    def read(directory: Path) -> ChatTemplate:
        """Reads `chat_template.jinja` of a model folder, else `chat_template` of `tokenizer_config.json`.

        Raises:
            ModelError: `template_invalid` when there is none or it does not parse.
        """
        config = read_json_object(directory / "tokenizer_config.json")
        named = {key: _token_text(config.get(key)) for key in _SPECIAL_TOKENS}
        special_tokens = {key: text for key, text in named.items() if text is not None}
        path = directory / "chat_template.jinja"
        try:
            # A byte order mark is no part of the text.
            source = read_file(path, FILE_LIMIT).decode("utf-8-sig")
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (OSError, UnicodeDecodeError) as fault:
            raise _invalid(str(path), reason(fault)) from None
        else:
            return ChatTemplate(source, str(path), special_tokens)
        inline = _named(config.get("chat_template"), directory)
        if inline is None:
            raise error(
                "template_invalid",
                f"{directory} has no chat template",
                "chat_template.jinja is missing and tokenizer_config.json names no chat_template",
                "copy chat_template.jinja from the original model, or use the prompt as it is (--raw)",
            )
        return ChatTemplate(inline, f"{directory / 'tokenizer_config.json'}: chat_template", special_tokens)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Renders a conversation to the text of a prompt.

        Args:
            messages: `role` and `content` each, and `tool_calls`, `reasoning_content`, ... as in the OpenAI
                format.
            tools: function descriptions as in the OpenAI format, or None.
            add_generation_prompt: whether to end with the opening of an answer.
            variables: further variables of the template, such as `enable_thinking`.

        Raises:
            InvalidValue: a message is malformed, or the template refuses the conversation.
            ModelError: `template_invalid` when the template itself fails or exceeds its bounds.
        """
        from jinja2 import TemplateError

        from colibri.template_sandbox import SIZE_LIMIT, Exceeded, Refused, check_size

        size = sum(map(len, user_texts(messages)))
        if size > SIZE_LIMIT:
            raise error(
                "context_length_exceeded",
                f"the messages have {size:,} characters",
                f"a prompt has at most {SIZE_LIMIT:,} characters",
                "send less: no model takes as much",
            )
        context = {
            **self._special_tokens,
            "messages": prepare_messages(messages, roles=self._roles, split_reasoning=self._knows_reasoning),
            "tools": list(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **variables,
        }
        parts: list[str] = []
        size = 0
        self._sandbox.start()
        try:
            for part in self._template.generate(context):
                size += len(part)
                check_size(size)
                parts.append(part)
        except Refused as fault:
            raise error("invalid_value", "the chat template refuses these messages", str(fault)) from None
        except Exceeded as fault:
            raise _invalid(self._name, str(fault)) from None
        except (RecursionError, MemoryError) as fault:
            resource = type(fault).__name__.removesuffix("Error").lower()
            raise _invalid(self._name, f"it needs too much {resource}") from None
        except (TemplateError, *_TEMPLATE_FAULTS) as fault:
            raise _invalid(self._name, f"{type(fault).__name__}: {fault}") from None
        return "".join(parts)

    def __repr__(self) -> str:
        return f"ChatTemplate({self._name!r})"


def prepare_messages(
    messages: Sequence[Message], *, roles: Sequence[str] = ROLES, split_reasoning: bool = True
) -> list[dict[str, Any]]:
    """Checks messages and brings them to the form templates expect; every turn is kept.

    Templates leave out what they do not know without a word, so an unknown role, a message without content
    and a part that is no text are refused here.

    Arguments of tool calls become mappings with their order kept: clients send them as JSON text, templates
    loop over them. With `split_reasoning`, an answer that still carries `<think>...</think>` in its text is
    split into `reasoning_content` and `content`, so that no template writes two thinking blocks into one
    turn.

    Raises:
        InvalidValue: naming the message and field that is wrong.
    """
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence):
        raise invalid_value("messages", messages, "a list of messages")
    if not messages:
        raise invalid_value("messages", [], "a list with at least one message")
    prepared = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise invalid_value(where, message, "a mapping with role and content")
        _check_role(message.get("role"), f"{where}.role", roles)
        content = message.get("content")
        _check_content(message, content, where)
        entry = dict(message)
        calls = entry.get("tool_calls")
        if calls is not None and not isinstance(calls, (list, tuple)):
            raise invalid_value(f"{where}.tool_calls", calls, "a list of calls")
        if calls:
            entry["tool_calls"] = [
                _tool_call(call, f"{where}.tool_calls[{number}]") for number, call in enumerate(calls)
            ]
        if not isinstance(entry.get("reasoning_content"), (str, NoneType)):
            raise invalid_value(f"{where}.reasoning_content", entry["reasoning_content"], "a text")
        if split_reasoning and entry["role"] == "assistant" and isinstance(content, str):
            _split_reasoning(entry, content)
        prepared.append(entry)
    return prepared


def user_texts(messages: object) -> Iterator[str]:
    """What users say, without the space around it: every template writes it out. Checks nothing."""
    for message in messages if isinstance(messages, (list, tuple)) else ():
        if isinstance(message, Mapping) and message.get("role") == "user":
            content = message.get("content")
            for part in content if isinstance(content, (list, tuple)) else (content,):
                text = part.get("text") if isinstance(part, Mapping) else part
                if isinstance(text, str):
                    yield text.strip()


def _check_role(role: object, where: str, roles: Sequence[str]) -> None:
    if role in roles:
        return
    near = difflib.get_close_matches(role, roles, n=1) if isinstance(role, str) else []
    expected = f"one of {', '.join(map(repr, roles))}"
    raise error(
        "invalid_value",
        f"{where} is {role!r}",
        f"{where} must be {expected}",
        f"did you mean {near[0]!r}?" if near else f"pass {expected} as {where}",
    )


def _check_content(message: Message, content: object, where: str) -> None:
    if content is None:
        # An answer may consist of tool calls or of reasoning alone.
        if message.get("tool_calls") or message.get("reasoning_content"):
            return
        raise invalid_value(f"{where}.content", content, "a text or a list of parts")
    if not isinstance(content, (str, list, tuple)):
        raise invalid_value(f"{where}.content", content, "a text or a list of parts")
    for index, part in enumerate(() if isinstance(content, str) else content):
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else part
        if not isinstance(text, str):
            raise invalid_value(
                f"{where}.content[{index}]",
                part,
                "a text, or {'type': 'text', 'text': ...}",
            )


def _split_reasoning(entry: dict[str, Any], content: str) -> None:
    """Moves a thinking block at the head of the text into `reasoning_content`, which wins if it is there."""
    head, mark, tail = content.partition("</think>")
    if not mark or not head.lstrip().startswith("<think>"):
        return
    entry["content"] = tail
    if not entry.get("reasoning_content"):
        entry["reasoning_content"] = head.lstrip().removeprefix("<think>")


def _tool_call(call: object, where: str) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise invalid_value(where, call, "a mapping with a function")
    entry = dict(call)
    function = entry.get("function", entry)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise invalid_value(f"{where}.function", function, "a mapping with a name and arguments")
    function = {**function, "arguments": _arguments(function.get("arguments"), f"{where}.function.arguments")}
    if "function" in entry:
        entry["function"] = function
        return entry
    return function


def _arguments(value: object, where: str) -> dict[str, Any]:
    """Arguments as a mapping; nothing at all means no arguments."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as fault:
            raise error(
                "invalid_value", f"{where} is no JSON", str(fault), "send the arguments as a JSON object"
            ) from None
    if not isinstance(value, Mapping):
        raise invalid_value(where, value, "a JSON object")
    return dict(value)


_SPECIAL_TOKENS: Final = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))


def _token_text(value: object) -> object:
    """A token is a text, or an object that holds it as `content`."""
    return value.get("content") if isinstance(value, dict) else value


def _named(value: object, directory: Path) -> str | None:
    """`chat_template` is a text, or a list of named texts of which `default` is meant."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
        source = named.get("default")
        if isinstance(source, str):
            return source
    raise _invalid(
        str(directory / "tokenizer_config.json"),
        "chat_template is neither a text nor a list with one named 'default'",
    )


def _invalid(name: str, why: str) -> ColibriError:
    return error(
        "template_invalid",
        f"{name} cannot be used as a chat template",
        why,
        "take it from the original model, or use the prompt as it is with --raw",
    )


def _compile(source: str, name: str) -> tuple[jinja2.Template, Sandbox]:
    import jinja2

    from colibri.template_sandbox import Exceeded, Sandbox

    sandbox = Sandbox()
    try:
        return sandbox.compile_bounded(source, name), sandbox
    except jinja2.TemplateSyntaxError as fault:
        lines = source.splitlines()
        line = lines[fault.lineno - 1].strip() if 0 < fault.lineno <= len(lines) else ""
        raise _invalid(name, f"line {fault.lineno}: {fault.message}: {line[:120]}") from None
    except (jinja2.TemplateError, Exceeded, RecursionError, MemoryError, SyntaxError, ValueError) as fault:
        raise _invalid(name, f"{type(fault).__name__}: {fault}") from None
