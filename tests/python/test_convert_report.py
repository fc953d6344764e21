"""What `colibri convert` says about what it did, will not do, and what can be done next."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "oracle" / "glm_tiny"


def test_the_report_is_flat_and_its_numbers_have_units(cli) -> None:
    dry = json.loads(cli("convert", str(TINY), "out", "--dry-run", "--json").out)
    assert (dry["version"], dry["source"], dry["destination"], dry["dry_run"]) == (1, str(TINY), "out", True)
    assert "summary" not in dry
    assert dry["space"].keys() == {"needed_bytes", "free_bytes", "suffices"}
    assert dry["estimate"].keys() == {"low_seconds", "high_seconds", "basis"}
    assert {shard["sha256"] for shard in dry["shards"]} == {None}
    done = json.loads(cli("convert", str(TINY), "out", "--json").out)
    assert all(re.fullmatch("[0-9a-f]{64}", shard["sha256"]) for shard in done["shards"] + done["files"])


def test_a_dry_run_has_no_column_for_errors_that_are_not_known(cli) -> None:
    shown = cli("convert", str(TINY), "out", "--dry-run").out
    assert "error" not in shown.splitlines()[0]
    assert max(map(len, shown.splitlines())) < 160
    assert "error" in cli("convert", str(TINY), "out").out.splitlines()[0]


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--experts", "q8"),
        ("--experts", "q4g64"),
        ("--dense", "q8"),
        ("--embeddings", "q8"),
        ("--mtp-format", "q8"),
        ("--scale-rule", "search"),
    ],
)
def test_no_format_is_chosen_for_codes_that_are_taken_over(cli, flag: str, value: str) -> None:
    done = cli("convert", str(TINY), "out", "--repack", flag, value)
    assert (done.code, done.slug()) == (2, "invalid_value")
    assert f"leave out {flag}" in done.err
    assert not (cli.home / "out").exists()


def test_no_format_is_chosen_for_codes_that_are_taken_over_in_python_either(tmp_path: Path) -> None:
    import colibri

    with pytest.raises(colibri.InvalidValue, match="repack"):
        colibri.convert(TINY, tmp_path / "out", repack=True, mtp="q4row")
    assert not (tmp_path / "out").exists()


def test_a_finished_container_is_told_from_a_folder_that_is_full(cli) -> None:
    assert cli("convert", str(TINY), "out", "-q").code == 0
    done = cli("convert", str(TINY), "out")
    assert (done.code, done.slug()) == (4, "output_not_writable")
    assert "out is complete" in done.err
    assert "colibri doctor --deep out" in done.err
    (cli.home / "full").mkdir()
    (cli.home / "full" / "note").write_text("mine")
    done = cli("convert", str(TINY), "full")
    assert (done.code, done.slug()) == (4, "output_not_writable")
    assert "full is not empty" in done.err


def test_the_last_line_names_what_works(cli) -> None:
    assert "colibri chat -m out" in cli("convert", str(ROOT / "data" / "demo_hf"), "out").err
    bare = cli.home / "bare"
    shutil.copytree(TINY, bare, ignore=shutil.ignore_patterns("ref", "tokenizer*", "*.jinja"))
    done = cli("convert", str(bare), "mute")
    assert done.code == 0, done.err
    assert "colibri inspect mute" in done.err
    assert "colibri chat -m" not in done.err
    done = cli("convert", str(ROOT / "oracle" / "olmoe"), "other")
    assert done.code == 0, done.err
    assert "colibri inspect other" in done.err
    assert "not run yet" in done.err
