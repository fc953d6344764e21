"""``colibri grammar``: grammars, schemas and tools without a model."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from colibri.cli import failure
from colibri.cli.console import console
from colibri.cli.options import PLAIN_OUTPUT, VerbCommand, takes
from colibri.cli.prompt import STDIN, read_standard_input, standard_input_is_offered
from colibri.cli.source import (
    Source,
    caret,
    grammar_of,
    grammar_source,
    read_tools,
    schema_hint,
    schema_source,
    tool_faults,
    tools_grammar,
    tools_source,
    where,
)
from colibri.cli.structure import tell
from colibri.cli.words import one_line, plural
from colibri.config import Settings
from colibri.settings import BY_NAME

if TYPE_CHECKING:
    from colibri.grammar import Grammar

# The exit code of a fault in what was checked, and of a string that does not fit.
FAULTY = 7
# There is no other mode here.
WHITE_SPACE = dataclasses.replace(BY_NAME["json_whitespace"], default_text="")
SCHEMA_SETTINGS = ("schema_lenient", WHITE_SPACE)
# Without a model there is nothing to choose freely: answers are calls unless text is asked for.
CHOICE = dataclasses.replace(
    BY_NAME["tool_choice"],
    help="required (calls and no text), auto (text, calls or both), or the name of a function.",
    default_text="required",
)
# What may follow is listed up to this many.
LISTED = 24
# Questions to a grammar that finding the characters behind a byte may cost.
QUESTIONS = 256
# Characters of a text that a line repeats.
SHOWN = 60


@click.group(name="grammar", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Work on a grammar, a schema or tools without a model.

    GRAMMAR is a file, - for standard input, or the grammar itself (with ::=). The exit code is 7 when
    something is wrong with what was given.
    """
    if ctx.invoked_subcommand is None:
        console().out(ctx.get_help() + "\n")


@command.command(cls=VerbCommand)
@click.argument("grammar", metavar="GRAMMAR")
@takes(*PLAIN_OUTPUT)
def check(settings: Settings, grammar: str) -> None:
    """List everything that is wrong with a GBNF grammar, with line, column and what was expected."""
    from colibri.engine import grammar_faults
    from colibri.grammar import is_object

    source = grammar_source(grammar)
    faults = grammar_faults("gbnf", source.text)
    if faults and is_object(source.text):
        fix = f"this looks like a JSON schema:  colibri grammar from-schema {shlex.quote(source.place)}"
        faults = [{**faults[0], "fix": fix}, *faults[1:]]
    if not settings.flag("json"):
        for fault in faults:
            _show_fault(fault, source)
    _conclude(settings, faults, {"place": source.place}, f"{source.place}: {_judged(faults)}")


@command.command(cls=VerbCommand)
@click.argument("grammar", metavar="GRAMMAR")
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@takes(*PLAIN_OUTPUT)
def test(settings: Settings, grammar: str, texts: tuple[str, ...]) -> None:
    """Say which of the texts a GBNF grammar accepts, and where the others stop.

    Without TEXT every line of standard input is one. The exit code is 7 when one is not accepted.
    """
    compiled = grammar_of(grammar)
    if not texts and grammar != STDIN and standard_input_is_offered():
        texts = tuple(read_standard_input("texts").splitlines())
    if not texts:
        why = "no TEXT is given, and nothing on standard input"
        raise failure.usage("there is nothing to test", why, "colibri grammar test tool.gbnf '{}'")
    results = [_tested(compiled, text) for text in texts]
    if settings.flag("json"):
        console().out_object({"results": results})
    else:
        for result in results:
            _show_result(result)
    if not all(result["accepted"] for result in results):
        raise failure.Stop(FAULTY)


@command.command("from-schema", cls=VerbCommand)
@click.argument("schema", metavar="SCHEMA")
@takes(*SCHEMA_SETTINGS, *PLAIN_OUTPUT)
def from_schema(settings: Settings, schema: str) -> None:
    """Write a JSON schema as a GBNF grammar, and say what to know about it.

    Standard output is the grammar, for --grammar or for changing it by hand; the rest goes to standard
    error. SCHEMA is a file, - for standard input, or the schema itself (beginning with {). Enforced are type,
    enum, const, properties in their order, required, additionalProperties, items, prefixItems, minItems,
    maxItems, minLength, maxLength, pattern, format, the bounds of numbers, anyOf, oneOf of alternatives that
    exclude each other, allOf of objects, and local $ref. Every other keyword of JSON Schema is an error that
    names it and its place; --schema-lenient ignores it and says so. A word that is none of its keywords says
    nothing, and a note names it.
    """
    from colibri.engine import grammar_faults
    from colibri.grammar import Grammar

    lenient, whitespace = settings.flag("schema_lenient"), settings.text("json_whitespace") or "compact"
    source = schema_source(schema)
    faults = grammar_faults("json_schema", source.text, lenient, whitespace)
    if faults:
        _refuse(settings, faults, source)
    compiled = Grammar.from_json_schema(source.text, lenient=lenient, whitespace=whitespace)
    _show_compiled(settings, compiled, "the schema can be enforced", {})


@command.command("from-tools", cls=VerbCommand)
@click.argument("tools", metavar="TOOLS.json")
@takes(CHOICE, "parallel_tool_calls", *SCHEMA_SETTINGS, *PLAIN_OUTPUT)
def from_tools(settings: Settings, tools: str) -> None:
    """Write the calls of a list of tools as a GBNF grammar, and say what to know about them.

    Standard output is the grammar of answers that are calls alone; with --tool-choice auto text may stand
    before them. TOOLS.json is a file, - for standard input, or the list itself. An answer under this grammar
    (--grammar) is the text of calls, and the model is shown no tools; --tools shows them and reads the calls.
    """
    source = tools_source(tools)
    chosen = read_tools(source)
    choice = settings.text("tool_choice") or "required"
    lenient, whitespace = settings.flag("schema_lenient"), settings.text("json_whitespace") or "compact"
    faults = tool_faults(chosen, choice, lenient, whitespace)
    if faults:
        _refuse(settings, faults, source)
    parallel = settings.flag("parallel_tool_calls")
    compiled = tools_grammar(chosen, source, choice, parallel, lenient, whitespace)
    what = f"{plural(len(chosen.names), 'function')} can be called: {', '.join(chosen.names)}"
    _show_compiled(settings, compiled, what, {"functions": list(chosen.names)})


def _judged(faults: Sequence[dict[str, Any]]) -> str:
    return plural(len(faults), "fault") if faults else "no fault"


def _conclude(settings: Settings, faults: list[dict[str, Any]], facts: dict[str, Any], line: str) -> None:
    """The last line or the object; ends the run when there are faults."""
    if settings.flag("json"):
        console().out_object({**facts, "faults": faults})
    else:
        console().out_line(line)
    if faults:
        raise failure.Stop(FAULTY)


def _refuse(settings: Settings, faults: list[dict[str, Any]], source: Source) -> NoReturn:
    """Says what is wrong with schemas and ends the run; standard output is for a grammar."""
    if settings.flag("json"):
        _conclude(settings, faults, {}, "")
    for fault in faults:
        why = "\n".join(part for part in (caret(fault), fault["why"]) if part)
        hint = schema_hint(source) if fault["line"] and fault["code"] == "grammar_syntax" else ""
        head = where(fault, source)
        console().error(fault["code"], f"{head}: {fault['message']}", why, fault["fix"] or hint)
    raise failure.Stop(FAULTY)


def _show_fault(fault: dict[str, Any], source: Source) -> None:
    """One fault: where, what, the line with a caret, why, and what to do."""
    head = f"error[{fault['code']}]: {where(fault, source)}: {one_line(fault['message'])}"
    console().out_line(head)
    for line in caret(fault).splitlines():
        console().out_line("  " + line, wrap=False)
    for label in ("why", "fix"):
        if fault[label]:
            console().out_line(f"  {label}:  {one_line(str(fault[label]))}")


def _tested(grammar: Grammar, text: str) -> dict[str, Any]:
    data = text.encode("utf-8", "surrogateescape")
    if grammar.accepts(data):
        return {"text": text, "accepted": True, "matched": len(data), "expected": []}
    # A character counts as a whole.
    matched = grammar.matched(data)
    while matched < len(data) and data[matched] & 0xC0 == 0x80:
        matched -= 1
    return {
        "text": text,
        "accepted": False,
        "matched": matched,
        "can_end": grammar.accepts(data[:matched]),
        "expected": expected(grammar, data[:matched]),
    }


def _show_result(result: dict[str, Any]) -> None:
    text = result["text"]
    shown = one_line(text if len(text) <= SHOWN else text[: SHOWN - 1] + "…")
    if result["accepted"]:
        console().out_line(f"accepted  {shown}")
        return
    listed = list(result["expected"])
    if len(listed) > LISTED:
        listed = [*listed[:LISTED], "…"]
    if result["can_end"]:
        listed.append("the end")
    size = len(text.encode("utf-8", "surrogateescape"))
    where = "it ends too early" if result["matched"] == size else f"stops at byte {result['matched'] + 1}"
    console().out_line(f"refused   {shown}")
    console().out_line(f"          {where}; expected there: {' '.join(listed) or 'nothing'}")


def _show_compiled(settings: Settings, grammar: Grammar, what: str, facts: dict[str, Any]) -> None:
    text, forced = grammar.to_gbnf(), grammar.forced().decode("utf-8", "replace")
    if settings.flag("json"):
        follows = expected(grammar, grammar.forced())
        value = {"gbnf": text, "forced": forced, "expected": follows, "notes": list(grammar.notes)}
        console().out_object({**facts, "faults": [], **value})
    else:
        console().out(text)
        console().info(what)
        if forced:
            console().info(f"every text begins with  {one_line(forced)}")
    tell(grammar)


def expected(grammar: Grammar, prefix: bytes) -> list[str]:
    """What may follow a prefix: characters and ranges of them, bytes that are none, special tokens."""
    allowed = grammar.allowed(prefix)
    leads = bytes(byte for byte in allowed if byte >= 0xC2)
    found: list[str] | None = None
    if set(leads) >= set(range(0xC2, 0xF5)):
        found = ["any character beyond ASCII"]
    elif leads and not set(allowed) & set(range(0x80, 0xC2)):
        found = _characters(grammar, prefix, leads)
    plain = allowed if found is None else bytes(byte for byte in allowed if byte < 0x80)
    return [*byte_ranges(plain), *(found or ()), *(f"the token {name}" for name in grammar.specials(prefix))]


def _characters(grammar: Grammar, prefix: bytes, leads: bytes) -> list[str] | None:
    """The characters beyond ASCII that may follow, as ranges; None when they are too many to look at."""
    open_, points, questions = [bytes([lead]) for lead in leads], list[int](), 0
    while open_:
        head = open_.pop()
        width = 2 if head[0] < 0xE0 else 3 if head[0] < 0xF0 else 4
        questions += 1
        if questions > QUESTIONS:
            return None
        for byte in grammar.allowed(prefix + head):
            whole = head + bytes([byte])
            if len(whole) == width:
                points.append(ord(whole.decode("utf-8")))
            else:
                open_.append(whole)
    ranges: list[list[int]] = []
    for point in sorted(points):
        if ranges and point == ranges[-1][1] + 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    names = [
        [chr(point) if chr(point).isprintable() else f"U+{point:04X}" for point in pair] for pair in ranges
    ]
    return [low if low == high else f"{low}-{high}" for low, high in names]


def byte_ranges(data: bytes) -> list[str]:
    """Bytes in rising order as characters and ranges: `"`, `0-9`, `\\x80-\\xbf`."""
    ranges: list[list[int]] = []
    for byte in data:
        # Letters, digits and the rest make ranges of their own.
        if ranges and byte == ranges[-1][1] + 1 and _kind(byte) == _kind(ranges[-1][1]):
            ranges[-1][1] = byte
        else:
            ranges.append([byte, byte])
    return [_named(low) if low == high else f"{_named(low)}-{_named(high)}" for low, high in ranges]


def _kind(byte: int) -> int:
    char = chr(byte)
    kinds = (char.isascii() and char.isdigit(), "a" <= char <= "z", "A" <= char <= "Z", byte >= 0x80)
    return kinds.index(True) if True in kinds else 4 if 0x20 < byte < 0x7F else 5


def _named(byte: int) -> str:
    names = {0x20: "space", 0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t"}
    return names.get(byte) or (chr(byte) if 0x20 < byte < 0x7F else f"\\x{byte:02x}")
