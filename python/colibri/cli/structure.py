"""What the answer may be: grammar, schema and tools of the command line, checked before any model is opened.

Owns the choice among these options, and what is said about them: what is asked for and not enforced is a
warning, which -q and --json keep. What must hold: whatever is wrong with a grammar is said before a byte of a
model is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from colibri.cli import failure
from colibri.cli.console import console
from colibri.cli.prompt import STDIN
from colibri.cli.source import (
    grammar_file,
    grammar_of,
    read_tools,
    schema_of,
    schema_source,
    tools_grammar,
    tools_source,
)
from colibri.config import Settings
from colibri.settings import BY_NAME

if TYPE_CHECKING:
    from colibri.grammar import Grammar

# Options of which one answer takes one.
SOURCES = ("grammar", "grammar_file", "json_schema", "json_schema_file", "tools")
# Options that only say how tools are called.
OF_TOOLS = ("tool_choice", "parallel_tool_calls")
# Options that may read standard input.
_READERS = ("grammar", "json_schema", "tools", "messages")


@dataclass(frozen=True, slots=True)
class Structure:
    """What an answer may be."""

    # Options of ``Model.stream``.
    options: dict[str, Any] = field(default_factory=dict)
    # What to know about the schema or the tools.
    notes: tuple[str, ...] = ()


def structure_of(settings: Settings) -> Structure:
    """What the settings say the answer may be.

    Raises:
        InvalidValue: a file cannot be read, or options exclude each other.
        GrammarError: a grammar, a schema or a tool is invalid or not supported.
    """
    given = [name for name in SOURCES if settings.text(name) is not None]
    if len(given) > 1:
        flags = " and ".join(BY_NAME[name].flag for name in given)
        raise failure.usage(f"{flags} are given", "one of them says what the answer may be", "leave one out")
    for name in OF_TOOLS if "tools" not in given else ():
        if settings.given(name):
            setting = BY_NAME[name]
            flag = setting.negative[0] if settings[name] is False else setting.flag
            raise failure.usage(f"{flag} is given without --tools", "it says how tools are called")
    if not given:
        return Structure()
    (name,) = given
    value = settings.text(name) or ""
    options: dict[str, Any] = {
        "grammar_mode": settings.text("grammar_mode"),
        "draft": settings.text("draft"),
        "draft_max": settings.integer("draft_max"),
    }
    lenient, whitespace = settings.flag("schema_lenient"), white_space(settings)
    if name == "tools":
        choice, parallel = settings.text("tool_choice") or "auto", settings.flag("parallel_tool_calls")
        source = tools_source(value)
        tools = read_tools(source)
        options |= {"tools": tools, "tool_choice": choice, "parallel_tool_calls": parallel}
        options |= {"tools_lenient": lenient, "json_whitespace": whitespace}
        if choice == "none":
            return Structure(options, tools.notes)
        # Compiled here for its errors and notes; a compilation takes a millisecond.
        grammar = tools_grammar(
            tools, source, choice=choice, parallel=parallel, lenient=lenient, whitespace=whitespace
        )
    else:
        grammar = options["grammar"] = _grammar(name, value, lenient, whitespace)
    tell(grammar, BY_NAME[name].flag)
    return Structure(options, grammar.notes)


def _grammar(name: str, value: str, lenient: bool, whitespace: str) -> Grammar:
    """The grammar that one of the options gives."""
    if name == "grammar":
        return grammar_of(value)
    if name == "grammar_file":
        return grammar_file(value)
    return schema_of(schema_source(value, is_file=name == "json_schema_file"), lenient, whitespace)


def white_space(settings: Settings) -> str:
    """The white space of JSON: what was said, else none where it is enforced.

    A model that is free writes what it has learnt, mostly with a space behind `:` and `,`; its text would
    leave a grammar without white space at once, and nothing more would be drafted.
    """
    if not settings.given("json_whitespace") and settings.text("grammar_mode") == "draft":
        return "flexible"
    return settings.text("json_whitespace") or "compact"


def tell(grammar: Grammar, origin: str = "") -> None:
    """Says what to know about a grammar, and which option it comes from.

    For one that is used, what holds for most schemas is said with -v only.
    """
    head = f"{origin}: " if origin else ""
    for note in grammar.notes:
        if note in grammar.ignored:
            console().warn(head + note)
        elif note in grammar.usual and origin:
            console().detail(f"note: {head}{note}")
        else:
            console().info(f"note: {head}{note}", "dim" if origin else "")


def readers_of_standard_input(settings: Settings) -> list[str]:
    """The flags whose value is read from standard input, which is then no part of the prompt."""
    return [BY_NAME[name].flag for name in _READERS if settings.text(name) == STDIN]
