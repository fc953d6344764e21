"""A conversion that is killed again and again ends like one that nobody stopped; what it converts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import colibri
import pytest

BENCHES = Path(__file__).resolve().parents[2] / "benches"


def bench(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHES / f"{name}.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("dtype", "options"), [("bf16", ("--experts", "q8")), ("fp8", ("--scale-rule", "absmax"))]
)
def test_a_killed_conversion_is_resumed_and_ends_the_same(
    tmp_path: Path, dtype: str, options: tuple[str, ...]
) -> None:
    arguments = ("--gb", "0.03", "--kills", "4", "--dtype", dtype, "--folder", str(tmp_path), "--", *options)
    done = bench("convert_kill_loop", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 kills" in done.stdout
    assert " 0 written again" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_the_synthetic_checkpoint_is_reproducible_and_readable(tmp_path: Path, dtype: str) -> None:
    for name, seed in (("first", "1"), ("again", "1"), ("other", "2")):
        arguments = ("--gb", "0.02", "--dtype", dtype, "--shards", "3", "--seed", seed)
        done = bench("synthetic_checkpoint", str(tmp_path / name), *arguments)
        assert done.returncode == 0, done.stderr
    shards = sorted(path.name for path in (tmp_path / "first").glob("*.safetensors"))
    assert len(shards) == 3
    for shard in shards:
        first, again, other = ((tmp_path / name / shard).read_bytes() for name in ("first", "again", "other"))
        assert first == again
        assert first != other
    summary = colibri.inspect(tmp_path / "first")
    index = json.loads((tmp_path / "first" / "model.safetensors.index.json").read_text("utf-8"))
    assert {tensor["name"] for tensor in summary["tensors"]} == index["weight_map"].keys()
    assert summary["model"]["formats"]["experts"] == [dtype]
    assert abs(index["metadata"]["total_size"] - 20e6) < 2e6
