"""What the answer may be: grammar, schema and tools of the command line, checked before any model is opened.

Owns the two kinds of value that each option takes, a file or the text itself, and the error that says which
of them was meant. What must hold: whatever is wrong with a grammar is said before a byte of a model is read.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from colibri.cli import failure
from colibri.cli.console import console
from colibri.cli.prompt import STANDARD_INPUT, STDIN, read_standard_input
from colibri.config import Settings
from colibri.errors import ColibriError, error

if TYPE_CHECKING:
    from colibri.grammar import Grammar
    from colibri.tools import ToolSet

# Options of which one answer takes one.
_SOURCES = ("grammar", "grammar_file", "json_schema", "tools")


def structure_options(settings: Settings) -> dict[str, Any]:
    """The options of ``Model.stream`` that say what the answer may be.

    Raises:
        InvalidValue: a file cannot be read, or options exclude each other.
        GrammarError: a grammar, a schema or a tool is invalid or not supported.
    """
    given = [name for name in _SOURCES if settings.text(name) is not None]
    if len(given) > 1:
        flags = " and ".join("--" + name.replace("_", "-") for name in given)
        raise failure.usage(f"{flags} are given", "one of them says what the answer may be", "leave one out")
    if settings.text("tool_choice") is not None and "tools" not in given:
        raise failure.usage("--tool-choice is given without --tools", "it chooses among tools")
    if not given:
        return {}
    options: dict[str, Any] = {
        "grammar_mode": settings.text("grammar_mode"),
        "draft": settings.text("draft"),
        "draft_max": settings.integer("draft_max"),
    }
    lenient, whitespace = settings.flag("schema_lenient"), settings.text("json_whitespace") or "compact"
    value = settings.text(given[0]) or ""
    if given == ["tools"]:
        choice = settings.text("tool_choice") or "auto"
        options |= {"tools": read_tools(value), "tool_choice": choice}
        options |= {"tools_lenient": lenient, "json_whitespace": whitespace}
        # Compiled here for its errors and notes; a compilation takes a millisecond.
        notes = tools_grammar(options).notes if choice != "none" else ()
    else:
        grammar = options["grammar"] = _source(given[0], value, lenient, whitespace)
        notes = grammar.notes
    for note in notes:
        console().info(note, "dim")
    return options


def _source(name: str, value: str, lenient: bool, whitespace: str) -> Grammar:
    """The grammar that one of the options gives."""
    if name == "json_schema":
        return schema_of(value, lenient, whitespace)
    return grammar_of(value) if name == "grammar" else grammar_file(value)


def takes_standard_input(settings: Settings) -> bool:
    """The grammar is read from standard input, which is then no part of the prompt."""
    return settings.text("grammar") == STDIN


def grammar_text(value: str) -> tuple[str, str]:
    """The text of ``--grammar`` and the name of the place it comes from."""
    from colibri.grammar import not_empty, read_grammar

    if "::=" in value:
        return value, "the grammar"
    if value == STDIN:
        return not_empty(read_standard_input("the grammar"), STANDARD_INPUT), STANDARD_INPUT
    return read_grammar(value, regular=False), value


def grammar_of(value: str) -> Grammar:
    """The grammar of ``--grammar``: a file, standard input or the text itself."""
    return _compiled(*grammar_text(value))


def grammar_file(path: str) -> Grammar:
    """The grammar of ``--grammar-file``."""
    from colibri.grammar import read_grammar

    return _compiled(read_grammar(path, regular=False), path)


def _compiled(text: str, place: str) -> Grammar:
    from colibri.grammar import Grammar

    try:
        return Grammar.from_gbnf(text)
    except ColibriError as fault:
        raise _placed(fault, text, place) from None


def _placed(fault: ColibriError, text: str, place: str) -> ColibriError:
    """The first fault of a grammar with the file, its line and a caret; the others are counted."""
    from colibri.engine import grammar_faults

    faults = grammar_faults("gbnf", text)
    if not faults or fault.code != "grammar_syntax":
        return fault
    first, more = faults[0], len(faults) - 1
    command = f"`colibri grammar check {place}` shows every problem at once" if more else None
    where = f"{place}:{first['line']}:{first['column']}: " if first["line"] else f"{place}: "
    why = "\n".join(part for part in (caret(first), first["why"]) if part)
    return error(first["code"], f"{where}{first['message']}", why or None, command or first["fix"])


def caret(fault: dict[str, Any]) -> str:
    """The line of a fault with a mark under its column."""
    if not fault["line"] or fault["text"] is None:
        return ""
    line, column = str(fault["text"]), int(fault["column"])
    # A window around the column of a long line.
    start = max(0, column - 60)
    shown = line[start : start + 100].replace("\t", " ")
    head = f"{fault['line']:>4} | "
    return f"{head}{shown}\n{' ' * (len(head) - 2)}| {' ' * (column - 1 - start)}^"


def schema_text(value: str) -> str:
    """The text of ``--json-schema``: a file, standard input or the text itself."""
    from colibri.grammar import read_grammar

    if value.lstrip().startswith("{"):
        return value
    if value == STDIN:
        return read_standard_input("the schema")
    return read_grammar(value, "schema", regular=False)


def schema_of(value: str, lenient: bool, whitespace: str) -> Grammar:
    """The grammar of ``--json-schema``."""
    from colibri.grammar import Grammar

    return Grammar.from_json_schema(schema_text(value), lenient=lenient, whitespace=whitespace)


def read_tools(path: str) -> ToolSet:
    """The tools of ``--tools``."""
    from colibri.grammar import read_grammar
    from colibri.tools import ToolSet

    form = 'write it as  [{"type": "function", "function": {"name": "…", "parameters": {…}}}]'
    text = (
        read_standard_input("the tools")
        if path == STDIN
        else read_grammar(path, "list of tools", regular=False)
    )
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise error("grammar_syntax", f"{path} is not JSON", str(fault), form) from None
    if isinstance(value, dict):
        value = value.get("tools", [value])
    try:
        return ToolSet(value)
    except ColibriError as fault:
        raise error("grammar_syntax", f"{path}: {fault.message}", fault.why, form) from None


def tools_grammar(options: dict[str, Any]) -> Grammar:
    """The grammar of the tools among options of ``Model.stream``."""
    from colibri.grammar import Grammar

    return Grammar.from_tools(
        options["tools"],
        choice=options["tool_choice"],
        lenient=options["tools_lenient"],
        whitespace=options["json_whitespace"],
    )
