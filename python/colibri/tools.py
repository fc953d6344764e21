"""Tools that a model may call: their descriptions, and the calls in an answer.

Owns the check of descriptions in the OpenAI format, and the form in which calls are handed on; the core
reads them. Refuses descriptions without a name or with parameters that are no object. What must hold: a
string stays the text that the model wrote; anything else is the JSON it wrote; what the grammar of the calls
accepts is read back as calls whose arguments fit their schemas.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from colibri.engine import Calls
from colibri.errors import error, invalid_value, shown

CALL_OPENS: Final = "<tool_call>"
CALL_CLOSES: Final = "</tool_call>"
CHOICES: Final = ("auto", "required", "none")
"""What may be said about calls in the place of a name."""

_NAME: Final = re.compile(r"[\w.\-/:]{1,256}")
# What a description of a function may hold, and other names under which its arguments are met.
_FIELDS: Final = frozenset({"name", "description", "parameters", "strict", "type", "function"})
_FOREIGN: Final = (
    "parameter",
    "params",
    "input_schema",
    "inputSchema",
    "args",
    "arguments",
    "properties",
    "schema",
)


class Framing(NamedTuple):
    """The white space in a model's calls: before the name of an argument, before its value, before the end of
    a call, and between two calls."""

    before_key: str
    before_value: str
    before_close: str
    between: str


class ToolSet:
    """A checked list of tools.

    Attributes:
        definitions: the descriptions as they were given.
        notes: fields of the descriptions that are not known, each with the name of its function.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Checks descriptions of functions: `{"type": "function", "function": {...}}`, or the inner mapping.

        Raises:
            InvalidValue: naming the description and the field that is wrong.
        """
        self._functions: dict[str, Mapping[str, Any]] = {}
        if isinstance(tools, (str, bytes)) or not isinstance(tools, Sequence) or not tools:
            raise invalid_value("tools", tools, "a list with at least one description of a function")
        self.definitions: tuple[dict[str, Any], ...] = tuple(
            _checked(tool, f"tools[{index}]") for index, tool in enumerate(tools)
        )
        for index, tool in enumerate(self.definitions):
            function = tool.get("function", tool)
            if function["name"] in self._functions:
                raise invalid_value(f"tools[{index}].name", function["name"], "a name of its own")
            self._functions[function["name"]] = function
        self.notes: tuple[str, ...] = tuple(note for tool in self.definitions for note in _unknown(tool))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the functions."""
        return tuple(self._functions)

    def chosen(self, choice: object) -> tuple[tuple[str, ...], bool]:
        """The functions that may be called, and whether an answer without a call is one too.

        Args:
            choice: `auto`, `required`, a name, `{"type": "function", "function": {"name": ...}}`; None is
                `auto`.

        Raises:
            InvalidValue: it is none of these, or `none`.
        """
        name: object = choice
        if isinstance(choice, Mapping):
            function = choice.get("function", choice)
            name = function.get("name") if isinstance(function, Mapping) else None
        if isinstance(name, str) and name in self._functions:
            return (name,), False
        if choice is None or (isinstance(choice, str) and choice in ("auto", "required")):
            return self.names, choice != "required"
        if isinstance(choice, str) and choice == "none":
            why = "no call is allowed, so there is no grammar of calls"
            fix = f"take auto, required or a function: {', '.join(self.names)}"
            raise error("invalid_value", "tool_choice is 'none'", why, fix)
        expected = f"one of {', '.join(map(repr, (*CHOICES, *self.names)))}"
        raise invalid_value("tool_choice", choice, expected)

    def functions(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """Name and schema of the parameters of functions."""
        return [{"name": name, "parameters": self._parameters(name)} for name in names]

    def parse(self, text: str) -> tuple[list[dict[str, Any]], str]:
        """The calls in a text that begins with one, in the OpenAI format, and what is left of it.

        A call that is not complete, or of a function that is not known, is left with all that follows it.

        Raises:
            InvalidValue: it is no text, or holds lone surrogates.
        """
        if not isinstance(text, str) or not _is_encodable(text):
            raise invalid_value("text", text, "a text, made of characters without lone surrogates")
        found, left = self._calls.read(text)
        calls: list[dict[str, Any]] = [
            {
                "id": f"call_{os.urandom(12).hex()}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for name, arguments in found
        ]
        return calls, left.strip() and left

    @functools.cached_property
    def _calls(self) -> Calls:
        """What reads calls; made when the first are read."""
        return Calls([(name, json.dumps(self._parameters(name), ensure_ascii=False)) for name in self.names])

    def _parameters(self, name: str) -> dict[str, Any]:
        parameters = self._functions[name].get("parameters")
        return dict(parameters) if parameters else {"type": "object", "properties": {}}

    def __repr__(self) -> str:
        return f"ToolSet({', '.join(self.names)})"


def tool_set(tools: object) -> ToolSet:
    """The tools, checked; see `ToolSet`."""
    return tools if isinstance(tools, ToolSet) else ToolSet(tools)  # type: ignore[arg-type]


def framing_of(text: str, name: str, key: str, value: str) -> Framing | None:
    """How a template frames calls, from a text with two calls of `name`, each with one argument.

    None when the calls are not in the form that is known here.
    """
    space = r"(\s*)"
    argument = f"<arg_key>{re.escape(key)}</arg_key>{space}<arg_value>{re.escape(value)}</arg_value>"
    call = f"<tool_call>{re.escape(name)}{space}{argument}{space}</tool_call>"
    found = re.search(f"{call}{space}{call}", text)
    return None if found is None else Framing(*found.groups()[:4])


def _checked(tool: object, where: str) -> dict[str, Any]:
    if not isinstance(tool, Mapping):
        raise invalid_value(where, tool, "a mapping that describes a function")
    if tool.get("type", "function") != "function":
        raise invalid_value(f"{where}.type", tool["type"], "'function', the only kind of tool")
    function = tool.get("function", tool)
    if not isinstance(function, Mapping):
        raise invalid_value(f"{where}.function", function, "a mapping with name and parameters")
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise invalid_value(f"{where}.name", name, "a name of letters, digits and _ . - / :")
    _check_fields(tool, function, where)
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise invalid_value(f"{where}.parameters", parameters, "a JSON schema of type object")
    if parameters and parameters.get("type", "object") != "object":
        raise invalid_value(f"{where}.parameters.type", parameters["type"], "'object'")
    for field in ("description", "parameters"):
        _check_json(function.get(field), f"{where}.{field}")
    return dict(tool)


def _check_json(value: object, where: str) -> None:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as fault:
        what = f"{where} cannot be written as JSON"
        raise error("invalid_value", what, str(fault), "write it with JSON values only") from None
    if not _is_encodable(text):
        why = "a text in it holds lone surrogates, which are no characters"
        raise error("invalid_value", f"{where} cannot be written as JSON", why, "write it without them")


def _is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _check_fields(tool: Mapping[Any, Any], function: Mapping[Any, Any], where: str) -> None:
    """Refuses arguments under a name or in a place where they would not be seen."""
    if "parameters" in function:
        return
    why = "without `parameters` the function has no arguments"
    if "parameters" in tool:
        what = f"{where} has `parameters` beside `function`"
        raise error("invalid_value", what, why, "write it inside of `function`")
    for place in (function, tool):
        for field in _FOREIGN:
            if field in place:
                inside = '{"type": "object", "properties": …}'
                fix = (
                    f"write it as parameters: {inside}" if field == "properties" else "write it as parameters"
                )
                raise error("invalid_value", f"{where} has `{field}` and no `parameters`", why, fix)


def _unknown(tool: Mapping[Any, Any]) -> Iterator[str]:
    """A note for each field of a description that says nothing here."""
    function = tool.get("function", tool)
    for place in (tool,) if function is tool else (tool, function):
        for field in place:
            if field not in _FIELDS:
                yield f"{function['name']}: the field {shown(field)} is not known, and restricts nothing"
