"""Tools that a model may call: their descriptions, and the calls in an answer.

Owns the check of descriptions in the OpenAI format, and the parser of GLM's form of a call: `<tool_call>`,
a name, pairs of `<arg_key>` and `<arg_value>`, `</tool_call>`, with or without white space between them.
Refuses descriptions without a name or with parameters that are no object. What must hold: a string stays the
text that the model wrote; anything else is the JSON value it wrote.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from colibri.errors import error, invalid_value

CALL_OPENS: Final = "<tool_call>"
CALL_CLOSES: Final = "</tool_call>"
CHOICES: Final = ("auto", "required", "none")
"""What may be said about calls in the place of a name."""

_CALL: Final = re.compile(
    r"\s*<tool_call>\s*(?P<name>[^<]*?)\s*"
    r"(?P<arguments>(?:<arg_key>(?:(?!</arg_key>).)*</arg_key>\s*"
    r"<arg_value>(?:(?!</arg_value>).)*</arg_value>\s*)*)"
    r"</tool_call>",
    re.DOTALL,
)
_ARGUMENT: Final = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)
_NAME: Final = re.compile(r"[\w.\-/:]{1,256}")
# JSON's types of Python's values.
_TYPES: Final = {str: "string", bool: "boolean", int: "number", float: "number", type(None): "null"}
_DEPTH: Final = 16


class Framing(NamedTuple):
    """The white space in a model's calls: before the name of an argument, before its value, before the end of
    a call, and between two calls."""

    before_key: str
    before_value: str
    before_close: str
    between: str


class ToolSet:
    """A checked list of tools."""

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

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the functions."""
        return tuple(self._functions)

    def chosen(self, choice: object) -> tuple[tuple[str, ...], bool]:
        """The functions that may be called, and whether an answer without a call is one too.

        Args:
            choice: `auto`, `required`, a name, `{"type": "function", "function": {"name": ...}}`; None is
                `auto`.
        """
        if isinstance(choice, Mapping):
            function = choice.get("function", choice)
            choice = function.get("name") if isinstance(function, Mapping) else None
        if choice in self._functions:
            return (str(choice),), False
        if choice in (None, "auto", "required"):
            return self.names, choice != "required"
        expected = f"one of {', '.join(map(repr, (*CHOICES, *self.names)))}"
        raise invalid_value("tool_choice", choice, expected)

    def functions(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """Name and schema of the parameters of functions."""
        return [{"name": name, "parameters": self._parameters(name)} for name in names]

    def parse(self, text: str) -> tuple[list[dict[str, Any]], str]:
        """The calls in a text that begins with one, in the OpenAI format, and what is left of it.

        A call that is not complete, or of a function that is not known, is left with all that follows it.
        """
        calls: list[dict[str, Any]] = []
        position = 0
        while (found := _CALL.match(text, position)) and found["name"] in self._functions:
            arguments = dict(self._arguments(found["name"], found["arguments"]))
            calls.append(
                {
                    "id": f"call_{os.urandom(12).hex()}",
                    "type": "function",
                    "function": {
                        "name": found["name"],
                        "arguments": json.dumps(arguments, ensure_ascii=False),
                    },
                }
            )
            position = found.end()
        return calls, text[position:].strip() and text[position:]

    def _arguments(self, name: str, text: str) -> Iterator[tuple[str, Any]]:
        root = self._parameters(name)
        properties = root.get("properties")
        for found in _ARGUMENT.finditer(text):
            key = found[1].strip()
            schema = properties.get(key, {}) if isinstance(properties, Mapping) else {}
            yield key, _value(found[2], types_of(schema, root))

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


def types_of(schema: object, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """The JSON types a schema names, `number` for integers too; none where it does not say.

    Args:
        schema: the schema; root: the document in which its references lie.
    """
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        return frozenset()
    if "$ref" in schema:
        return types_of(_referred(schema["$ref"], root), root, depth + 1)
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        return frozenset(_type_of(value) for value in values)
    named = schema.get("type")
    if named is not None:
        listed = named if isinstance(named, list) else [named]
        return frozenset("number" if one == "integer" else str(one) for one in listed)
    for keyword in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(keyword), list):
            parts = [types_of(part, root, depth + 1) for part in schema[keyword]]
            if keyword == "allOf":
                return next((part for part in parts if part), frozenset())
            return frozenset().union(*parts) if all(parts) else frozenset()
    if any(keyword in schema for keyword in ("minLength", "maxLength", "pattern", "format")):
        return frozenset({"string"})
    return frozenset()


def _type_of(value: object) -> str:
    return "array" if isinstance(value, list) else _TYPES.get(type(value), "object")


def _referred(pointer: object, root: Mapping[str, Any]) -> object:
    place: Any = root
    for part in str(pointer).removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        place = place.get(name) if isinstance(place, Mapping) else None
    return place


def _value(text: str, types: frozenset[str]) -> Any:
    """The value an argument's text stands for.

    Where only strings are expected the text is the string. Otherwise it is JSON; and a string where it is no
    JSON, or a value of a type that is not expected although strings are.
    """
    if types == {"string"}:
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if "string" in types and _type_of(value) not in types - {"string"} else value


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
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise invalid_value(f"{where}.parameters", parameters, "a JSON schema of type object")
    if parameters and parameters.get("type", "object") != "object":
        raise invalid_value(f"{where}.parameters.type", parameters["type"], "'object'")
    try:
        json.dumps(parameters)
    except (TypeError, ValueError, RecursionError) as fault:
        raise error(
            "invalid_value", f"{where}.parameters cannot be written as JSON", str(fault), "use JSON values"
        ) from None
    return dict(tool)
