"""Process start to the end of `colibri --help`, and to the first token of `colibri generate`; medians.

python benches/startup.py [--repeat 9]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path


def command() -> str:
    """The console script of the environment that runs this file."""
    beside = Path(sys.executable).with_name("colibri")
    found = str(beside) if beside.exists() else shutil.which("colibri")
    if found is None:
        raise SystemExit("colibri is not installed in this environment")
    return found


def seconds_to_help(colibri: str) -> float:
    """Seconds until the help text is complete and the process has ended."""
    started = time.perf_counter()
    subprocess.run([colibri, "--help"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def seconds_to_first_token(colibri: str) -> float:
    """Seconds until the first byte of the answer is on standard output."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [colibri, "generate", "Tell me a story about a fox.", "--temp", "0", "-n", "16"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        bufsize=0,
    )
    assert process.stdout is not None
    process.stdout.read(1)
    elapsed = time.perf_counter() - started
    process.stdout.read()
    process.wait()
    return elapsed


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=9)
    repeat = parser.parse_args().repeat
    colibri = command()
    help_times = [seconds_to_help(colibri) for _ in range(repeat)]
    token_times = [seconds_to_first_token(colibri) for _ in range(repeat)]
    print(f"--help: median {statistics.median(help_times):.3f} s, worst {max(help_times):.3f} s")
    print(f"first token: median {statistics.median(token_times):.3f} s, worst {max(token_times):.3f} s")


if __name__ == "__main__":
    main()
