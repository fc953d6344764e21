"""Kills a conversion at random moments, resumes it each time, and compares the end with an uninterrupted run.

python benches/convert_kill_loop.py [--gb 1] [--dtype bf16|fp8] [--shards 16] [--kills 50] [--seed 0]
    [--folder DIR] [-- OPTIONS OF colibri convert]

The moments of SIGKILL are spread over the whole duration of the uninterrupted run, one in each of as many
equal parts, in drawn order. A run that was resumed and ends before its moment comes completes the round; its
files must have the digests of the uninterrupted run, and every shard that the journal called finished at a
kill must still be the same file: same inode, size and time of modification. Then a new round begins, until
every moment was used. Exit code 0 means that all of it held.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from synthetic_checkpoint import write_checkpoint

JOURNAL = ".colibri-convert.json"
NEVER = 86_400.0
"""Seconds no conversion takes."""
Identity = tuple[int, int, int]
"""Inode, size and time of modification of a file."""


@dataclasses.dataclass(slots=True)
class Tally:
    """What the rounds showed."""

    kills: int = 0
    rounds: int = 0
    after_end: int = 0
    resumed: int = 0
    finished_at_kills: int = 0
    faults: list[str] = dataclasses.field(default_factory=list)


class Conversion:
    """One source, one destination, one set of options."""

    def __init__(self, source: Path, destination: Path, options: list[str]) -> None:
        self.destination = destination
        self.partial = destination.with_name(destination.name + ".partial")
        self._command = [sys.executable, "-m", "colibri", "convert", str(source), str(destination)]
        self._command += ["--quiet", "--json", *options]

    def start(self) -> subprocess.Popen[str]:
        """Starts or resumes the conversion in a process group of its own."""
        return subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def clear(self) -> None:
        """Removes what is there of the destination."""
        for folder in (self.destination, self.partial):
            shutil.rmtree(folder, ignore_errors=True)

    def finished(self) -> dict[str, Identity]:
        """The shards that the journal calls finished, with what tells whether one was written again."""
        try:
            journal = json.loads((self.partial / JOURNAL).read_text("utf-8"))
        except FileNotFoundError:
            return {}
        named = {text for text in _texts(journal) if text.endswith(".safetensors")}
        return {name: identity(self.partial / name) for name in named if (self.partial / name).exists()}

    def digests(self) -> dict[str, str]:
        """SHA-256 of every file of the destination."""
        found = {}
        for path in sorted(self.destination.rglob("*")):
            if path.is_file():
                with path.open("rb") as file:
                    name = path.relative_to(self.destination).as_posix()
                    found[name] = hashlib.file_digest(file, "sha256").hexdigest()
        return found


def identity(path: Path) -> Identity:
    """What changes when a file is written again."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _texts(value: object) -> Iterator[str]:
    """Every text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def uninterrupted(conversion: Conversion) -> tuple[float, dict[str, str]]:
    """Seconds and digests of a run that nobody stops."""
    conversion.clear()
    started = time.monotonic()
    process = conversion.start()
    _, errors = process.communicate()
    seconds = time.monotonic() - started
    if process.returncode:
        raise SystemExit(f"the uninterrupted run failed:\n{errors}")
    return seconds, conversion.digests()


def interrupt(conversion: Conversion, seconds: float) -> tuple[bool, int, str, str]:
    """Runs for so long and kills it; whether it was killed, its exit code, and what it wrote."""
    process = conversion.start()
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, errors = process.communicate()
        return process.returncode == -signal.SIGKILL, process.returncode, out, errors
    return False, process.returncode, out, errors


def run_rounds(
    conversion: Conversion, moments: list[float], expected: dict[str, str], chance: random.Random
) -> Tally:
    """Kills at every moment, and checks the end of every round."""
    tally = Tally()
    longest = max(moments)
    while moments:
        conversion.clear()
        tally.rounds += 1
        seen: dict[str, Identity] = {}
        fresh = True
        while True:
            # Once all moments are used the last round runs to its end.
            moment = moments[-1] if moments else NEVER
            killed, code, out, errors = interrupt(conversion, moment)
            if not killed:
                if fresh:
                    # It was faster than the uninterrupted run: an earlier moment takes the place of this one.
                    moments[-1] = chance.uniform(0, longest)
                break
            fresh = False
            moments.pop()
            tally.kills += 1
            if conversion.destination.exists():
                # Killed between the last rename and the end of the process: complete all the same. The next
                # run clears away what is left of the work.
                killed, code, out, errors = False, 0, "", ""
                if (conversion.destination / JOURNAL).exists():
                    killed, code, out, errors = interrupt(conversion, NEVER)
                tally.after_end += 1
                break
            now = conversion.finished()
            tally.finished_at_kills += len(now)
            tally.faults += _redone(seen, now, tally)
            seen = now
        if code:
            tally.faults.append(f"round {tally.rounds}: exit {code}: {errors.strip()}")
            continue
        _check_end(conversion, seen, expected, out, tally)
        if len(tally.faults) > 20:
            break
    return tally


def _redone(seen: dict[str, Identity], now: dict[str, Identity], tally: Tally) -> list[str]:
    return [
        f"round {tally.rounds}: {name} was finished and was written again"
        for name, kept in seen.items()
        if now.get(name) != kept
    ]


def _check_end(
    conversion: Conversion, seen: dict[str, Identity], expected: dict[str, str], out: str, tally: Tally
) -> None:
    found = conversion.digests()
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            tally.faults.append(f"round {tally.rounds}: {name} differs from the uninterrupted run")
    there = {name: identity(conversion.destination / name) for name in seen if name in found}
    tally.faults += _redone(seen, there, tally)
    if conversion.partial.exists():
        tally.faults.append(f"round {tally.rounds}: {conversion.partial} is still there")
    if out:
        resumed = json.loads(out)["resumed_shards"]
        tally.resumed += resumed
        if resumed < len(seen):
            tally.faults.append(f"round {tally.rounds}: {resumed} shards kept of {len(seen)} finished")


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--dtype", choices=("bf16", "fp8"), default="bf16")
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder otherwise")
    parser.add_argument("options", nargs="*", help="options of colibri convert, after --")
    given = parser.parse_args()
    chance = random.Random(given.seed)
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="colibri-kill-") as name:
        source = Path(name) / "source"
        size = write_checkpoint(source, round(given.gb * 1e9), given.dtype, given.shards, given.seed)
        conversion = Conversion(source, Path(name) / "container", given.options)
        seconds, expected = uninterrupted(conversion)
        part = seconds / given.kills
        moments = [(index + chance.random()) * part for index in range(given.kills)]
        chance.shuffle(moments)
        tally = run_rounds(conversion, moments, expected, chance)
    written = sum(name.endswith(".safetensors") for name in expected)
    print(
        f"{size / 1e9:.2f} GB {given.dtype} in {given.shards} shards, {written} shards written, "
        f"{seconds:.2f} s uninterrupted\n"
        f"{tally.kills} kills in {tally.rounds} conversions, {tally.after_end} of them after the end\n"
        f"{tally.finished_at_kills} finished shards seen at kills, {tally.resumed} reported as kept, "
        f"{sum('written again' in fault for fault in tally.faults)} written again"
    )
    for fault in tally.faults:
        print(f"FAULT {fault}")
    print("passed" if not tally.faults and tally.kills == given.kills else "FAILED")
    return 0 if not tally.faults and tally.kills == given.kills else 1


if __name__ == "__main__":
    sys.exit(main())
