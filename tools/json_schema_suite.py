"""Runs the JSON-Schema-Test-Suite against the grammars of its schemas, and keeps what came of it.

    python tools/json_schema_suite.py            compares with the baseline; fails when a test got worse
    python tools/json_schema_suite.py --update   writes the baseline, unless a test got worse
    python tools/json_schema_suite.py --show F   also names every test with the letter F (n, e or p)

A grammar accepts texts, the suite has values: each value is written in the order in which its schema names
properties, without white space. A text is judged rightly (`p`), or refused although the value is valid (`n`:
grammars are narrower than schemas), or its schema does not compile (`e`). An invalid value that is accepted
is never tolerated and has no place in the baseline.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from colibri import Grammar
from colibri.errors import ColibriError

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "data" / "json_schema_test_suite"
BASELINE = FOLDER / "baseline.json"
DRAFTS = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
}
RANKS = "pnew"
"""What may become of a test, from best to worst; `w`: an invalid value was accepted."""

Outcomes = dict[str, dict[str, list[str]]]
"""For each draft and file one text a group, one letter a test."""


def groups() -> Iterator[tuple[str, str, int, dict[str, Any]]]:
    """Draft, file, number and content of each group of tests."""
    for draft in DRAFTS:
        files = json.loads((FOLDER / f"{draft}.json").read_text("utf-8"))
        for name, entries in files.items():
            for number, group in enumerate(entries):
                yield draft, name, number, group


def property_names(schema: Any) -> list[str]:
    """Every name under `properties`, then under `required`, in the order of the text."""
    defined: dict[str, None] = {}
    required: dict[str, None] = {}
    pending = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            if isinstance(part.get("properties"), dict):
                defined.update(dict.fromkeys(part["properties"]))
            if isinstance(part.get("required"), list):
                required.update(dict.fromkeys(name for name in part["required"] if isinstance(name, str)))
            pending.extend(reversed(list(part.values())))
        elif isinstance(part, list):
            pending.extend(reversed(part))
    return list(dict.fromkeys([*defined, *required]))


def in_order(value: Any, names: list[str]) -> Any:
    """The value with the properties of its objects in the order of the names, all others behind them."""
    if isinstance(value, list):
        return [in_order(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    known = [name for name in names if name in value]
    rest = [name for name in value if name not in set(known)]
    return {name: in_order(value[name], names) for name in known + rest}


def compact(value: Any) -> str:
    """JSON text without white space."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def judged(draft: str, group: dict[str, Any]) -> str:
    """One letter for each test of a group."""
    schema = group["schema"]
    if isinstance(schema, dict):
        schema = {"$schema": DRAFTS[draft], **schema}
    try:
        grammar = Grammar.from_json_schema(compact(schema))
    except ColibriError:
        return "e" * len(group["tests"])
    names = property_names(schema)
    letters = []
    for test in group["tests"]:
        accepted = grammar.accepts(compact(in_order(test["data"], names)))
        letters.append("p" if accepted == test["valid"] else "w" if accepted else "n")
    return "".join(letters)


def run() -> Outcomes:
    """What becomes of every test."""
    outcomes: Outcomes = {}
    for draft, name, _number, group in groups():
        outcomes.setdefault(draft, {}).setdefault(name, []).append(judged(draft, group))
    return outcomes


def titles() -> dict[tuple[str, str, int, int], str]:
    """A title for each test: draft, file, and the descriptions of group and test."""
    found = {}
    for draft, name, number, group in groups():
        for at, test in enumerate(group["tests"]):
            title = f"{draft} {name}: {group['description']}: {test['description']}"
            found[draft, name, number, at] = title
    return found


def letters(outcomes: Outcomes) -> dict[tuple[str, str, int, int], str]:
    """The letter of each test."""
    return {
        (draft, name, number, at): letter
        for draft, files in outcomes.items()
        for name, rows in files.items()
        for number, row in enumerate(rows)
        for at, letter in enumerate(row)
    }


def changes(before: Outcomes, now: Outcomes) -> tuple[list[str], list[str]]:
    """The tests that got worse, and those that got better, each with both letters; a test that the baseline
    lacks counts as an error there, one that is missing now is worse."""
    old, new = letters(before), letters(now)
    names = titles()
    worse, better = [], []
    for place in sorted(old.keys() | new.keys()):
        was, is_now = old.get(place, "e"), new.get(place, "w")
        if was == is_now and place in old:
            continue
        line = f"{was} -> {is_now}  {names.get(place, place)}"
        (worse if RANKS.index(is_now) > RANKS.index(was) else better).append(line)
    return worse, better


def baseline() -> Outcomes:
    """The committed outcomes."""
    outcomes: Outcomes = json.loads(BASELINE.read_text("utf-8"))
    return outcomes


def table(outcomes: Outcomes) -> str:
    """Markdown: for each file of the suite, which is named after a keyword, how its tests went."""
    rows = ["| keyword | 2020-12: pass | error | false negative | draft-07: pass | error | false negative |"]
    rows.append("|---|" + "---:|" * 6)
    names = dict.fromkeys(name for files in outcomes.values() for name in files)
    for name in sorted(names, key=lambda name: ("/" in name, name)):
        rows.append(_row(f"`{name}`", [outcomes[draft].get(name, []) for draft in DRAFTS]))
    rows.append(_row("all", [[row for rows in outcomes[draft].values() for row in rows] for draft in DRAFTS]))
    return "\n".join(rows) + "\n"


def _row(title: str, drafts: list[list[str]]) -> str:
    cells = [title]
    for rows in drafts:
        counts = Counter("".join(rows))
        cells += [f"{counts[letter]:,}" if counts else "" for letter in "pen"]
    return "| " + " | ".join(cells) + " |"


def write_baseline(outcomes: Outcomes) -> None:
    """Writes the baseline, one group a line."""
    BASELINE.write_text(json.dumps(outcomes, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Runs, compares, prints; returns the exit code."""
    parser = argparse.ArgumentParser(description="The JSON-Schema-Test-Suite against our grammars.")
    parser.add_argument("--update", action="store_true", help="write the baseline")
    parser.add_argument("--show", choices=["p", "n", "e"], help="name every test with this letter")
    options = parser.parse_args()
    outcomes = run()
    if options.show:
        names = titles()
        print(
            "\n".join(names[place] for place, letter in letters(outcomes).items() if letter == options.show)
        )
    for draft in DRAFTS:
        print(draft, dict(Counter("".join(row for rows in outcomes[draft].values() for row in rows))))
    accepted = [titles()[place] for place, letter in letters(outcomes).items() if letter == "w"]
    print("\n".join(f"accepted although invalid: {title}" for title in accepted))
    worse, better = changes(baseline(), outcomes) if BASELINE.exists() else ([], [])
    print("\n".join([*(f"worse: {line}" for line in worse), *(f"better: {line}" for line in better)]))
    if options.update and not accepted and not worse:
        write_baseline(outcomes)
        print(f"wrote {BASELINE}")
    return 1 if worse or accepted else 0


if __name__ == "__main__":
    sys.exit(main())
