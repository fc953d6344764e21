"""The corpus generator gives the same text for the same seed, byte for byte."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
START = "[gMASK]<sop>"
# SHA-256 of the file that `--megabytes 0.2 --seed 1` writes.
DIGEST = "3d8abbacae25db1301fcde1e645133a17e13d87b032ab5a5e1a4b04e2b286840"


def generate(out: Path, *options: str) -> str:
    command = [sys.executable, "-m", "demo_model.corpus", str(out), *options]
    subprocess.run(command, cwd=ROOT / "tools", check=True, capture_output=True)
    return out.read_text(encoding="utf-8")


def split(text: str) -> list[str]:
    return [START + rest for rest in text.split(START)[1:]]


def test_a_seed_gives_the_same_text(tmp_path: Path) -> None:
    text = generate(tmp_path / "train.jsonl", "--megabytes", "0.2", "--seed", "1")
    assert hashlib.sha256(text.encode()).hexdigest() == DIGEST
    assert generate(tmp_path / "other.jsonl", "--megabytes", "0.2", "--seed", "2") != text


def test_the_heldout_text_comes_from_the_generator_in_its_order(tmp_path: Path) -> None:
    stored = split((ROOT / "tests/data/eval_heldout.txt").read_text(encoding="utf-8"))
    generated = iter(split(generate(tmp_path / "heldout.txt", "--heldout", "--kilobytes", "230")))
    missing = [document for document in stored if document not in generated]
    assert len(stored) == 458
    assert missing == []


def test_excluded_documents_do_not_appear(tmp_path: Path) -> None:
    first = split(generate(tmp_path / "heldout.txt", "--heldout", "--kilobytes", "20"))
    excluded = tmp_path / "excluded.jsonl"
    excluded.write_text("".join(json.dumps(document) + "\n" for document in first[:10]), encoding="utf-8")
    rest = split(
        generate(tmp_path / "rest.txt", "--heldout", "--kilobytes", "20", "--exclude", str(excluded))
    )
    assert not set(first[:10]) & set(rest)
    assert rest[: len(first) - 10] == [document for document in first if document not in first[:10]]
