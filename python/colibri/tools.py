"""Tools that a model may call: their descriptions, and the calls in an answer.

Owns the check of descriptions in the OpenAI format, and the parser of GLM's form of a call: `<tool_call>`,
a name, pairs of `<arg_key>` and `<arg_value>`, `</tool_call>`, with or without white space between them.
Refuses descriptions without a name or with parameters that are no object. What must hold: a string stays the
text that the model wrote; anything else is the JSON value it wrote; what the grammar of the calls accepts is
read back as calls.
"""

from __future__ import annotations

import json
import operator
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from colibri.errors import error, invalid_value

CALL_OPENS: Final = "<tool_call>"
CALL_CLOSES: Final = "</tool_call>"
CHOICES: Final = ("auto", "required", "none")
"""What may be said about calls in the place of a name."""

_HEAD: Final = re.compile(r"\s*<tool_call>\s*(?P<name>[^<]*?)\s*(?=<arg_key>|</tool_call>)")
_KEY: Final = re.compile(r"\s*<arg_key>((?:(?!</arg_key>).)*)</arg_key>\s*<arg_value>", re.DOTALL)
_VALUE_BEGINS: Final = re.compile(r"\S")
_VALUE_CLOSES: Final = re.compile(r"</arg_value>")
_ENDS: Final = re.compile(r"\s*</tool_call>")
_NAME: Final = re.compile(r"[\w.\-/:]{1,256}")
# JSON's types of Python's values.
_TYPES: Final = {str: "string", bool: "boolean", int: "number", float: "number", type(None): "null"}
_DEPTH: Final = 16
_BOUNDS: Final = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
}


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_no_number)


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
        while (head := _HEAD.match(text, position)) and head["name"] in self._functions:
            found = self._arguments(head["name"], text, head.end())
            if found is None:
                break
            arguments, position = found
            written = ", ".join(f"{json.dumps(key)}: {value}" for key, value in arguments.items())
            function = {"name": head["name"], "arguments": f"{{{written}}}"}
            calls.append({"id": f"call_{os.urandom(12).hex()}", "type": "function", "function": function})
        return calls, text[position:].strip() and text[position:]

    def _arguments(self, name: str, text: str, position: int) -> tuple[dict[str, str], int] | None:
        """The arguments of a call as JSON texts, and where the call ends; None when it has no end."""
        root = self._parameters(name)
        properties = root.get("properties")
        arguments = {}
        while not (ends := _ENDS.match(text, position)):
            opens = _KEY.match(text, position)
            if opens is None:
                return None
            key = opens[1].strip()
            schema = properties.get(key, {}) if isinstance(properties, Mapping) else {}
            closes = _closing(text, opens.end(), types_of(schema, root))
            if closes is None:
                return None
            arguments[key] = _value(text[opens.end() : closes.start()], schema, root)
            position = closes.end()
        return arguments, ends.end()

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


def _closing(text: str, start: int, types: frozenset[str]) -> re.Match[str] | None:
    """The mark that closes the value that begins at `start`.

    A string ends at the first mark, and cannot hold one. JSON ends where it ends: a text within it may hold
    marks.
    """
    first = _VALUE_CLOSES.search(text, start)
    if first is None or types == {"string"}:
        return first
    may_be_string = not types or "string" in types
    if may_be_string and (_KEY.match(text, first.end()) or _ENDS.match(text, first.end())):
        return first
    begins = _VALUE_BEGINS.search(text, start)
    try:
        _, end = _DECODER.raw_decode(text, begins.start() if begins else start)
    except (ValueError, RecursionError):
        return first
    closes = _VALUE_CLOSES.search(text, end)
    return first if closes is None or text[end : closes.start()].strip() else closes


def _value(text: str, schema: object, root: Mapping[str, Any]) -> str:
    """The JSON text of the value that an argument's text stands for.

    Where only strings are expected the text is the string. Otherwise it is JSON; and a string where it is no
    JSON, or, if strings are expected too, a value that is not.
    """
    types = types_of(schema, root)
    string = json.dumps(text, ensure_ascii=False)
    if types == {"string"}:
        return string
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return string
    if "string" in types and _type_of(value) not in types - {"string"}:
        return string
    if ("string" in types or not types) and not _fits(value, schema, root):
        return string
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        # A number beyond those of the machine.
        return text.strip()


def _fits(value: object, schema: object, root: Mapping[str, Any], depth: int = 0) -> bool:
    """Whether a value has a type, is among the values and within the bounds that a schema names."""
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        return True
    if "$ref" in schema:
        return _fits(value, _referred(schema["$ref"], root), root, depth + 1)
    listed = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(listed, list) and not any(
        _type_of(one) == _type_of(value) and one == value for one in listed
    ):
        return False
    named = schema.get("type", [])
    kinds = named if isinstance(named, list) else [named]
    if kinds and _type_of(value) not in types_of({"type": kinds}, root):
        return False
    if isinstance(value, float) and kinds and "number" not in kinds and not value.is_integer():
        return False
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        for keyword, within in _BOUNDS.items():
            bound = schema.get(keyword)
            if isinstance(bound, (int, float)) and not isinstance(bound, bool) and not within(value, bound):
                return False
    for keyword, enough in (("anyOf", any), ("oneOf", any), ("allOf", all)):
        parts = schema.get(keyword)
        if isinstance(parts, list) and not enough(_fits(value, part, root, depth + 1) for part in parts):
            return False
    return True


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
