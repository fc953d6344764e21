"""The JSON-Schema-Test-Suite: what is invalid is never accepted, and nothing gets worse than the baseline."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from colibri import Grammar
from colibri.errors import ColibriError

ROOT = Path(__file__).resolve().parents[2]
UPDATE = "run python tools/json_schema_suite.py --update"


@pytest.fixture(scope="module")
def suite() -> ModuleType:
    """The tool that runs the suite."""
    spec = importlib.util.spec_from_file_location(
        "colibri_json_schema_suite", ROOT / "tools" / "json_schema_suite.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def outcomes(suite):
    """What becomes of each test."""
    return suite.run()


def test_no_invalid_value_is_accepted(suite, outcomes):
    titles = suite.titles()
    letters = suite.letters(outcomes)
    assert len(letters) == len(titles) > 3000
    assert [titles[place] for place, letter in letters.items() if letter == "w"] == []
    # Both answers are given often enough to mean something.
    judged = Counter()
    for draft, name, number, group in suite.groups():
        for at, test in enumerate(group["tests"]):
            judged[test["valid"], letters[draft, name, number, at]] += 1
    assert judged[True, "p"] > 700
    assert judged[False, "p"] > 500


def test_nothing_is_worse_than_the_baseline_and_the_baseline_is_up_to_date(suite, outcomes):
    worse, better = suite.changes(suite.baseline(), outcomes)
    assert worse == []
    assert better == [], f"tests got better; {UPDATE}"


def test_changes_are_noticed_in_both_directions(suite, outcomes):
    before = json.loads(json.dumps(outcomes))
    rows = before["draft7"]["type"]
    assert rows[0][0] == "p"
    rows[0] = "n" + rows[0][1:]
    worse, better = suite.changes(before, outcomes)
    assert (len(worse), len(better)) == (0, 1)
    assert better[0].startswith("n -> p  draft7 type: ")
    worse, better = suite.changes(outcomes, before)
    assert (len(worse), len(better)) == (1, 0)
    del before["draft7"]["type"]
    assert len(suite.changes(outcomes, before)[0]) == sum(map(len, outcomes["draft7"]["type"]))


def test_the_table_shows_the_baseline(suite):
    page = (ROOT / "docs" / "grammar.md").read_text("utf-8")
    assert suite.table(suite.baseline()) in page, "run python tools/generate_docs.py"


@pytest.mark.parametrize("keyword", ["contentEncoding", "contentMediaType"])
def test_encoded_content_is_refused_by_name_and_place(suite, keyword):
    value = {"contentEncoding": "base64", "contentMediaType": "application/json"}[keyword]
    schema = {"type": "object", "properties": {"a": {"type": "string", keyword: value}}}
    with pytest.raises(ColibriError) as raised:
        Grammar.from_json_schema(schema)
    assert raised.value.code == "schema_unsupported"
    assert f"#/properties/a/{keyword}" in str(raised.value)
    assert any(keyword in note for note in Grammar.from_json_schema(schema, lenient=True).notes)


def test_values_are_written_in_the_order_of_the_schema(suite):
    schema = {"required": ["z", "q"], "items": {"properties": {"b": {}, "a": {}}}, "properties": {"c": {}}}
    names = suite.property_names(schema)
    assert names == ["c", "b", "a", "z", "q"]
    ordered = suite.in_order([{"y": 0, "a": {"q": 1, "b": 2}, "c": 3}], names)
    assert suite.compact(ordered) == '[{"c":3,"a":{"b":2,"q":1},"y":0}]'
