"""``colibri grammar``: grammars, schemas and tools without a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from colibri.cli import failure
from colibri.cli.console import console
from colibri.cli.options import PLAIN_OUTPUT, VerbCommand, takes
from colibri.cli.prompt import STDIN, read_standard_input, standard_input_is_offered
from colibri.cli.structure import caret, grammar_of, grammar_text, read_tools, schema_text
from colibri.cli.words import one_line, plural
from colibri.config import Settings

if TYPE_CHECKING:
    from colibri.grammar import Grammar

# The exit code of a fault in what was checked, and of a string that does not fit.
FAULTY = 7
SCHEMA_SETTINGS = ("schema_lenient", "json_whitespace")
# Bytes that may follow are listed up to this many.
LISTED = 24
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

    text, place = grammar_text(grammar)
    faults = grammar_faults("gbnf", text)
    if not settings.flag("json"):
        for fault in faults:
            _show_fault(fault, place)
    _conclude(settings, faults, {"place": place}, f"{place}: {_judged(faults)}")


@command.command(cls=VerbCommand)
@click.argument("grammar", metavar="GRAMMAR")
@click.argument("texts", metavar="TEXT", nargs=-1)
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
    exclude each other, allOf of objects, and local $ref. Every other keyword is an error that names it and
    its place; --schema-lenient ignores it and says so.
    """
    from colibri.engine import grammar_faults
    from colibri.grammar import Grammar

    lenient, whitespace = settings.flag("schema_lenient"), settings.text("json_whitespace") or "compact"
    text = schema_text(schema)
    faults = grammar_faults("json_schema", text, lenient, whitespace)
    if faults:
        # Standard output is for the grammar.
        if not settings.flag("json"):
            for fault in faults:
                place = f"{fault['pointer']}: " if fault["pointer"] else ""
                console().error(
                    fault["code"], place + fault["message"], fault["why"] or "", fault["fix"] or ""
                )
            raise failure.Stop(FAULTY)
        _conclude(settings, faults, {}, "")
    compiled = Grammar.from_json_schema(text, lenient=lenient, whitespace=whitespace)
    _show_compiled(settings, compiled, "the schema can be enforced", {})


@command.command("from-tools", cls=VerbCommand)
@click.argument("tools", metavar="TOOLS.json")
@takes("tool_choice", *SCHEMA_SETTINGS, *PLAIN_OUTPUT)
def from_tools(settings: Settings, tools: str) -> None:
    """Write the calls of a list of tools as a GBNF grammar, and say what to know about them.

    Standard output is the grammar of answers that are calls alone; with --tool-choice auto text may stand
    before them.
    """
    from colibri.grammar import Grammar

    chosen = read_tools(tools)
    compiled = Grammar.from_tools(
        chosen,
        choice=settings.text("tool_choice") or "required",
        lenient=settings.flag("schema_lenient"),
        whitespace=settings.text("json_whitespace") or "compact",
    )
    what = f"{plural(len(chosen.names), 'function')} can be called: {', '.join(chosen.names)}"
    _show_compiled(settings, compiled, what, {"functions": list(chosen.names)})


def _judged(faults: Sequence[dict[str, Any]]) -> str:
    return plural(len(faults), "fault") if faults else "no fault"


def _conclude(settings: Settings, faults: list[dict[str, Any]], facts: dict[str, Any], line: str) -> None:
    """The last line or the object; ends the run when there are faults."""
    if settings.flag("json"):
        shown = [{key: value for key, value in fault.items() if key != "shown"} for fault in faults]
        console().out_object({**facts, "faults": shown})
    else:
        console().out_line(line)
    if faults:
        raise failure.Stop(FAULTY)


def _show_fault(fault: dict[str, Any], place: str) -> None:
    """One fault: where, what, the line with a caret, why, and what to do."""
    where = [place] if place else []
    if fault["line"]:
        where += [str(fault["line"]), str(fault["column"])]
    if fault["pointer"]:
        where.append(str(fault["pointer"]))
    head = ":".join(where)
    console().out_line(f"error[{fault['code']}]: {head + ': ' if head else ''}{one_line(fault['message'])}")
    for line in caret(fault).splitlines():
        console().out_line("  " + line, wrap=False)
    for label in ("why", "fix"):
        if fault[label]:
            console().out_line(f"  {label}:  {one_line(str(fault[label]))}")


def _tested(grammar: Grammar, text: str) -> dict[str, Any]:
    data = text.encode("utf-8", "surrogateescape")
    if grammar.accepts(data):
        return {"text": text, "accepted": True, "matched": len(data), "expected": []}
    matched = grammar.matched(data)
    allowed = grammar.allowed(data[:matched])
    return {
        "text": text,
        "accepted": False,
        "matched": matched,
        "can_end": grammar.accepts(data[:matched]),
        "expected": byte_ranges(allowed),
    }


def _show_result(result: dict[str, Any]) -> None:
    text = result["text"]
    shown = one_line(text if len(text) <= SHOWN else text[: SHOWN - 1] + "…")
    if result["accepted"]:
        console().out_line(f"accepted  {shown}")
        return
    expected = list(result["expected"])
    if len(expected) > LISTED:
        expected = [*expected[:LISTED], "…"]
    if result["can_end"]:
        expected.append("the end")
    size = len(text.encode("utf-8", "surrogateescape"))
    where = "it ends too early" if result["matched"] == size else f"stops at byte {result['matched'] + 1}"
    console().out_line(f"refused   {shown}")
    console().out_line(f"          {where}; expected there: {' '.join(expected) or 'nothing'}")


def _show_compiled(settings: Settings, grammar: Grammar, what: str, facts: dict[str, Any]) -> None:
    text, forced = grammar.to_gbnf(), grammar.forced().decode("utf-8", "replace")
    if settings.flag("json"):
        expected = byte_ranges(grammar.allowed(grammar.forced()))
        value = {"gbnf": text, "forced": forced, "expected": expected, "notes": list(grammar.notes)}
        console().out_object({**facts, "faults": [], **value})
        return
    console().out(text)
    console().info(what)
    if forced:
        console().info(f"every text begins with  {forced}")
    for note in grammar.notes:
        console().info(f"note: {note}")


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
