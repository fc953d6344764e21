"""The Rust tests, so that one command passes all tests of the project."""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_rust_workspace() -> None:
    """Every Rust test passes; the binding crate is left out because its tests are the Python ones."""
    cargo = shutil.which("cargo")
    assert cargo is not None, "cargo is needed to build and test colibri"
    nextest = subprocess.run([cargo, "nextest", "--version"], capture_output=True, cwd=ROOT).returncode == 0
    command = [cargo, "nextest", "run"] if nextest else [cargo, "test", "--lib", "--tests"]
    environment = {**os.environ, "CARGO_TERM_COLOR": "never"}
    done = subprocess.run(
        [*command, "--workspace", "--exclude", "colibri-python", "--all-features"],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:]
