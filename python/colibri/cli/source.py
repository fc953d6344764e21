"""Where grammars, schemas and tools of the command line come from, and how their faults are shown.

Owns the kinds of value that an option takes (a file, standard input, or the text itself) and the errors that
say which of them was meant. What must hold: a fault names the file, and where it has a line and a column,
these with the line and a caret.
"""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from colibri.cli.prompt import STANDARD_INPUT, STDIN, decode, read_standard_input
from colibri.errors import ColibriError, GrammarError, error

if TYPE_CHECKING:
    from colibri.grammar import Grammar
    from colibri.tools import ToolSet

_TOOLS_FORM = 'write it as  [{"type": "function", "function": {"name": "…", "parameters": {…}}}]'


class Source(NamedTuple):
    """A text, and the name of the place it comes from."""

    text: str
    place: str
    # Whether the place is a file, which a command can name.
    is_file: bool


def _source(value: str, what: str, is_text: bool) -> Source:
    """The text that a value of an option stands for: itself, standard input, or a file."""
    from colibri.grammar import FILE_LIMIT, not_empty, read_grammar

    if is_text:
        # Bytes of the command line that are no characters come as lone surrogates.
        decode(os.fsencode(value), f"the {what}")
        return Source(value, f"the {what}", False)
    if value == STDIN:
        text = not_empty(read_standard_input(f"the {what}", FILE_LIMIT), STANDARD_INPUT, what)
        return Source(text, STANDARD_INPUT, False)
    return Source(read_grammar(value, what, regular=False), value, True)


def grammar_source(value: str) -> Source:
    """The text of ``--grammar``."""
    return _source(value, "grammar", "::=" in value)


def schema_source(value: str, *, is_file: bool = False) -> Source:
    """The text of ``--json-schema``, or of ``--json-schema-file``; without the wrapper of OpenAI's API."""
    from colibri.grammar import read_grammar
    from colibri.schema_source import bare_schema

    if is_file:
        source = Source(read_grammar(value, "schema", regular=False), value, True)
    else:
        source = _source(value, "schema", value.lstrip().startswith("{"))
    return source._replace(text=bare_schema(source.text))


def grammar_of(value: str) -> Grammar:
    """The grammar of ``--grammar``: a file, standard input or the text itself."""
    return _compiled(grammar_source(value))


def grammar_file(path: str) -> Grammar:
    """The grammar of ``--grammar-file``."""
    from colibri.grammar import read_grammar

    return _compiled(Source(read_grammar(path, regular=False), path, True))


def _compiled(source: Source) -> Grammar:
    from colibri.engine import grammar_faults
    from colibri.grammar import Grammar, is_object

    try:
        return Grammar.from_gbnf(source.text)
    except ColibriError as fault:
        faults = grammar_faults("gbnf", source.text)
        place = shlex.quote(source.place)
        hint = f"this looks like a JSON schema:  --json-schema {place}" if is_object(source.text) else ""
        raise _placed(fault, faults, source, "check", hint) from None


def schema_of(source: Source, lenient: bool, whitespace: str) -> Grammar:
    """The grammar of ``--json-schema``."""
    from colibri.engine import grammar_faults
    from colibri.grammar import Grammar

    try:
        return Grammar.from_json_schema(source.text, lenient=lenient, whitespace=whitespace)
    except ColibriError as fault:
        faults = grammar_faults("json_schema", source.text, lenient, whitespace)
        raise _placed(fault, faults, source, "from-schema", schema_hint(source)) from None


def schema_hint(source: Source) -> str:
    """What a schema that is no JSON may be, or what to do about it."""
    if "::=" in source.text and not source.text.lstrip().startswith(("{", "[")):
        return f"this looks like a grammar:  --grammar {shlex.quote(source.place)}"
    return "correct the JSON there"


def _placed(
    fault: ColibriError, faults: list[dict[str, Any]], source: Source, verb: str, hint: str
) -> ColibriError:
    """The first of the faults with its file, its place, its line and a caret; the others are counted.

    Args:
        fault: the error of all of them; faults: each by itself; source: the text.
        verb: the command that shows all of them; hint: what to do where the text cannot be read.
    """
    if not faults:
        return fault
    first, more = faults[0], len(faults) - 1
    why = "\n".join(part for part in (caret(first), first["why"]) if part)
    fix = first["fix"] or (hint if first["code"] == "grammar_syntax" and first["line"] else None)
    if hint.startswith("this looks"):
        fix = hint
    elif more:
        named = shlex.quote(source.place) if source.is_file else "FILE"
        rest = f"{more} more: `colibri grammar {verb} {named}` shows every problem at once"
        fix = f"{fix}\n{rest}" if fix else rest
    return error(first["code"], f"{where(first, source)}: {first['message']}", why or None, fix)


def where(fault: Mapping[str, Any], source: Source) -> str:
    """Where a fault lies: file, line and column, or file and JSON pointer."""
    if fault["line"]:
        return f"{source.place}:{fault['line']}:{fault['column']}"
    if fault["pointer"]:
        # A text that stands on the command line needs no name.
        return f"{source.place}: {fault['pointer']}" if source.is_file else str(fault["pointer"])
    return source.place


def caret(fault: Mapping[str, Any]) -> str:
    """The line of a fault with a mark under its column."""
    if not fault["line"] or fault["text"] is None:
        return ""
    line, column = str(fault["text"]), int(fault["column"])
    # A window around the column of a long line.
    start = max(0, column - 60)
    shown = line[start : start + 100].replace("\t", " ")
    head = f"{fault['line']:>4} | "
    return f"{head}{shown}\n{' ' * (len(head) - 2)}| {' ' * (column - 1 - start)}^"


def tools_source(value: str) -> Source:
    """The text of ``--tools``."""
    return _source(value, "list of tools", value.lstrip().startswith(("[", "{")))


def read_tools(source: Source) -> ToolSet:
    """The tools in a text."""
    from colibri.tools import ToolSet

    # A fault at the end is one of the last line that says something.
    text, place = source.text.rstrip(), source.place
    try:
        tools = json.loads(text, parse_constant=_no_json, parse_float=_finite)
    except json.JSONDecodeError as fault:
        lines = text.split("\n")
        line = {"line": fault.lineno, "column": fault.colno, "text": lines[fault.lineno - 1]}
        what = f"{where(line, source)}: this is not JSON: {fault.msg}"
        raise error("grammar_syntax", what, caret(line), _TOOLS_FORM) from None
    except (ValueError, RecursionError) as fault:
        raise error("grammar_syntax", f"{place} cannot be read", str(fault), _TOOLS_FORM) from None
    if isinstance(tools, dict):
        tools = tools.get("tools", [tools])
    try:
        return ToolSet(tools)
    except ColibriError as fault:
        own = fault.fix if fault.fix and fault.fix.startswith("write it") else _TOOLS_FORM
        raise error("grammar_syntax", f"{place}: {fault.message}", fault.why, own) from None


def _no_json(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"the number {number} is larger than can be kept")
    return value


def tool_faults(tools: ToolSet, choice: str, lenient: bool, whitespace: str) -> list[dict[str, Any]]:
    """Every fault in the schemas of the tools that may be called."""
    from colibri.engine import grammar_faults

    names, _ = tools.chosen(choice)
    text = json.dumps(tools.functions(names), ensure_ascii=False)
    faults = grammar_faults("tools", text, False, False, lenient, whitespace)
    # Lines and columns of that text are nobody's.
    return [{**one, "line": None, "column": None, "text": None} for one in faults]


def tools_grammar(
    tools: ToolSet, source: Source, choice: str, parallel: bool, lenient: bool, whitespace: str
) -> Grammar:
    """The grammar of the calls of tools; see ``Grammar.from_tools``."""
    from colibri.grammar import Grammar

    try:
        return Grammar.from_tools(
            tools, choice=choice, parallel=parallel, lenient=lenient, whitespace=whitespace
        )
    except GrammarError as fault:
        faults = tool_faults(tools, choice, lenient, whitespace)
        if not faults:
            raise
        lines = [": ".join(filter(None, (one["pointer"], one["message"]))) for one in faults]
        # What can be ignored is the remedy of most.
        fixes = sorted((one["fix"] for one in faults if one["fix"]), key=lambda fix: "--schema-" not in fix)
        fix = fixes[0] if fixes else fault.fix
        if len(lines) > 1:
            what = f"{source.place}: {len(lines)} faults in the schemas"
            raise error(fault.code, what, "\n".join(lines), fix) from None
        raise error(fault.code, f"{source.place}: {lines[0]}", faults[0]["why"], fix) from None
