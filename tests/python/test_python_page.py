"""The page docs/python.md: its examples run, and its tables are complete."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import colibri
from colibri.errors import TAXONOMY
from colibri.request import GenerationOptions
from colibri.sampling import BUILT_IN, FIELDS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "python.md").read_text("utf-8")
README = (Path(__file__).resolve().parents[2] / "README.md").read_text("utf-8")
EXAMPLE = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)


def table(first: str) -> dict[str, list[str]]:
    """The rows under the heading cell `first`, by their first cell."""
    lines = PAGE.split(f"| {first} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in rows}


def test_every_example_prints_what_stands_under_it() -> None:
    names: dict[str, object] = {"__name__": "page"}
    examples = EXAMPLE.findall(PAGE)
    assert len(examples) >= 8
    for code, expected in examples:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "docs/python.md", "exec"), names)
        assert printed.getvalue() == expected, code


def test_the_example_of_the_readme_runs() -> None:
    ((code, _),) = EXAMPLE.findall(README)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    assert "Paris" in printed.getvalue()


def test_the_tables_of_options_are_complete() -> None:
    parameters = table("parameter")
    assert list(parameters) == [f"`{name}`" for name in FIELDS]
    for name in FIELDS:
        default = getattr(BUILT_IN, name)
        assert parameters[f"`{name}`"][0] == ("drawn" if default is None else str(default))
    own = [name for name in GenerationOptions.__annotations__ if name not in FIELDS]
    assert list(table("option")) == [f"`{name}`" for name in own]


def test_the_table_of_errors_is_complete() -> None:
    listed = {
        (cell.split("`")[1], code) for cell, (codes,) in table("class").items() for code in codes.split(", ")
    }
    assert listed == {(kind.error.__name__, f"`{code}`") for code, kind in TAXONOMY.items()}


def test_the_docstring_of_generate_lists_every_option() -> None:
    text = colibri.Model.generate.__doc__ or ""
    for name in GenerationOptions.__annotations__:
        assert f"`{name}`" in text, name
