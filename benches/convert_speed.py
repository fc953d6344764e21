"""Time of conversions beside the time that the disk alone needs; prints tables in Markdown.

python benches/convert_speed.py [--gb 4] [--repeat 1] [--folder DIR] [--dtypes bf16 fp8]
    [--json FILE] [-- OPTIONS OF colibri convert]

Before every conversion the disk is measured on the same file system with the same amount of data: the source
is read past the page cache (the better of one and two readers), and as many bytes as the container has are
written and flushed with fsync. The bound of a conversion is bytes read / read rate + bytes written / write
rate. The source is dropped from the page cache before it is converted. Peak memory is the resident set that
the kernel reports for the converting process. The projection for the FP8 checkpoint of GLM-5.2 takes the
sizes from its shapes and the processor's time per byte from the FP8 runs here.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import colibri.engine
from synthetic_checkpoint import WIDTHS, tensors, write_checkpoint

PIECE = 8 << 20
"""Bytes of one read or write of the measurements of the disk."""
RULES = ("absmax", "search")
PC_READ = PC_WRITE = 3.5e9
"""Bytes a second of the PC's NVMe drive, assumed."""
PC_CORES = 8
"""Cores of the PC, each assumed as fast as one here."""
GLM = {"experts": 256, "vocab": 154_880, "layers": 78, "dense": 3}
"""What GLM-5.2 has beside the widths."""
GLM_SHARD = 5.3e9
"""Bytes of one shard of its FP8 checkpoint."""


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """One conversion with the rates of the disk just before it."""

    read: int
    written: int
    read_rate: float
    write_rate: float
    seconds: float
    cpu_seconds: float
    peak: int

    @property
    def bound(self) -> float:
        """Seconds that the disk alone needs."""
        return self.read / self.read_rate + self.written / self.write_rate


def weight_files(folder: Path) -> list[Path]:
    """The weight files of a folder."""
    return sorted(folder.glob("*.safetensors"))


def size_of(folder: Path) -> int:
    """Bytes of the weight files."""
    return sum(path.stat().st_size for path in weight_files(folder))


def forget(folder: Path) -> None:
    """Drops a folder's files from the page cache."""
    os.sync()
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _read(paths: Sequence[Path]) -> None:
    """Reads whole files past the page cache where the file system can."""
    buffer = mmap.mmap(-1, PIECE)
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        except OSError:
            descriptor = os.open(path, os.O_RDONLY)
        offset = 0
        # The end of a file is shorter than an aligned piece; there the read is short.
        while (count := os.preadv(descriptor, [buffer], offset)) > 0:
            offset += count
            if count < PIECE:
                break
        os.close(descriptor)


def read_rate(folder: Path) -> float:
    """Bytes a second of reading the weight files: the better of one and two readers."""
    best = 0.0
    for readers in (1, 2):
        forget(folder)
        paths = weight_files(folder)
        threads = [threading.Thread(target=_read, args=(paths[first::readers],)) for first in range(readers)]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = max(best, size_of(folder) / (time.perf_counter() - started))
    return best


def write_rate(folder: Path, size: int) -> float:
    """Bytes a second of writing a new file and flushing it: through the page cache or past it."""
    best = 0.0
    for flags in (0, os.O_DIRECT):
        path = folder / "written"
        os.sync()
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | flags, 0o600)
        except OSError:
            # A file system without direct writes.
            continue
        # An anonymous map lies on a page, as direct writes want it; whole pieces only.
        piece = mmap.mmap(-1, PIECE)
        piece.write(os.urandom(PIECE))
        pieces = max(1, size // PIECE)
        started = time.perf_counter()
        for _ in range(pieces):
            os.write(descriptor, piece)
        os.fsync(descriptor)
        best = max(best, pieces * PIECE / (time.perf_counter() - started))
        os.close(descriptor)
        path.unlink()
    return best


def convert(source: Path, destination: Path, options: Sequence[str]) -> tuple[float, float, int]:
    """Converts in a process of its own: seconds, seconds of processor time, peak bytes of memory."""
    command = [sys.executable, "-m", "colibri", "convert", str(source), str(destination), "--quiet"]
    started = time.perf_counter()
    process = subprocess.Popen([*command, *options], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the conversion failed: exit {process.returncode}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def measure(source: Path, work: Path, rule: str, options: Sequence[str], written: int) -> Run:
    """The rates of the disk, then one conversion."""
    reads, writes = read_rate(source), write_rate(work, written)
    forget(source)
    destination = work / "container"
    seconds, cpu_seconds, peak = convert(source, destination, ["--scale-rule", rule, *options])
    run = Run(size_of(source), size_of(destination), reads, writes, seconds, cpu_seconds, peak)
    shutil.rmtree(destination)
    return run


def middle(runs: Sequence[Run]) -> Run:
    """The run with the median of time over bound."""
    ratio = statistics.median_low(run.seconds / run.bound for run in runs)
    return next(run for run in runs if run.seconds / run.bound == ratio)


def container_bytes() -> tuple[int, int]:
    """Bytes of GLM-5.2 as FP8 checkpoint, and as container with the default formats."""
    source = container = 0
    for tensor in tensors(WIDTHS[-1][1], dtype="fp8", **GLM):
        source += tensor.bytes
        if len(tensor.shape) < 2 or tensor.name.endswith("_scale_inv"):
            container += 0 if tensor.name.endswith("_scale_inv") else 4 * tensor.shape[0]
            continue
        rows, columns = tensor.shape
        layer = tensor.name.split(".")[2] if tensor.name.startswith("model.layers.") else ""
        if tensor.name.endswith("mlp.gate.weight"):
            container += 4 * rows * columns
        elif layer in ("", str(GLM["layers"])) or ".indexer." in tensor.name:
            container += rows * columns + 4 * rows
        else:
            container += rows * -(-columns // 2) + 4 * rows * -(-columns // 64)
    return source, container


def minutes(seconds: float) -> str:
    """Minutes for a table."""
    return f"{seconds / 60:.0f} min"


def report(results: dict[tuple[str, str], Run], given: argparse.Namespace) -> None:
    """Prints both tables."""
    machine = colibri.engine.machine()
    print(
        f"{machine.cpu_name}, {machine.cores_allowed} cores, {machine.kernels[0]}; {given.gb:g} GB sources\n"
    )
    print(
        "| source | scale rule | read, written | disk: read, write | bound | time | time / bound "
        "| search / absmax | processor time | peak memory |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for (dtype, rule), run in results.items():
        other = results.get((dtype, "absmax"))
        against = f"{run.seconds / other.seconds:.2f}" if rule == "search" and other else ""
        print(
            f"| {dtype} | {rule} | {run.read / 1e9:.2f}, {run.written / 1e9:.2f} GB "
            f"| {run.read_rate / 1e9:.2f}, {run.write_rate / 1e9:.2f} GB/s | {run.bound:.2f} s "
            f"| {run.seconds:.2f} s | {run.seconds / run.bound:.2f} | {against} | {run.cpu_seconds:.1f} s "
            f"| {run.peak / 1e9:.2f} GB |"
        )
    source, container = container_bytes()
    disk = source / PC_READ + container / PC_WRITE
    print(
        f"\nFP8 checkpoint of GLM-5.2 on a PC with {PC_CORES} cores as fast as these and a drive of "
        f"{PC_READ / 1e9:g} GB/s for reading and writing: {source / 1e9:.0f} GB become "
        f"{container / 1e9:.0f} GB.\nBetween all work at the same time as the disk's and all work after it:\n"
    )
    print("| scale rule | disk | processor | time | space with the source | space with --delete-source |")
    print("|---|---|---|---|---|---|")
    for rule in RULES:
        if ("fp8", rule) not in results:
            continue
        run = results["fp8", rule]
        work = run.cpu_seconds / run.read * source / PC_CORES
        print(
            f"| {rule} | {minutes(disk)} | {minutes(work)} "
            f"| {minutes(max(disk, work))} to {minutes(disk + work)} "
            f"| {(source + container) / 1e9:.0f} GB | {(container + 2 * GLM_SHARD) / 1e9:.0f} GB |"
        )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gb", type=float, default=4.0)
    parser.add_argument("--dtypes", nargs="+", choices=("bf16", "fp8"), default=["bf16", "fp8"])
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder otherwise")
    parser.add_argument("--json", type=Path, help="write every run to this file too")
    parser.add_argument("options", nargs="*", help="options of colibri convert, after --")
    given = parser.parse_args()
    results: dict[tuple[str, str], Run] = {}
    every: list[dict[str, object]] = []
    for dtype in given.dtypes:
        with tempfile.TemporaryDirectory(dir=given.folder, prefix="colibri-speed-") as name:
            work = Path(name)
            source = work / "source"
            write_checkpoint(source, round(given.gb * 1e9), dtype, given.shards)
            # The first conversion says how much is written, and is not counted.
            convert(source, work / "container", ["--scale-rule", "absmax", *given.options])
            written = size_of(work / "container")
            shutil.rmtree(work / "container")
            runs: dict[str, list[Run]] = {rule: [] for rule in RULES}
            for _ in range(given.repeat):
                for rule in RULES:
                    runs[rule].append(measure(source, work, rule, given.options, written))
            for rule in RULES:
                results[dtype, rule] = middle(runs[rule])
                every += [{"source": dtype, "rule": rule, **dataclasses.asdict(run)} for run in runs[rule]]
    report(results, given)
    if given.json:
        with contextlib.suppress(FileExistsError):
            given.json.parent.mkdir(parents=True)
        given.json.write_text(json.dumps(every, indent=1), "utf-8")


if __name__ == "__main__":
    main()
