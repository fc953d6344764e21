"""Command line of the training.

    python -m demo_model.training rows.npz OUT --minutes 60
    python -m demo_model.training rows2.npz OUT --init OUT/checkpoint.safetensors --rate 2.2e-3 --start 0.75

Writes OUT/checkpoint.safetensors and OUT/train.log. `--init` also takes an exported model.
"""

import argparse
import os
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import torch
import torch.multiprocessing as multiprocessing

from ..architecture import CONFIG, initial_weights
from ..weights import Checkpoint, flatten, load_checkpoint
from .schedule import Plan
from .shared import share
from .worker import Run, work


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="demo_model.training")
    parser.add_argument("rows", type=Path, help="packed training rows")
    parser.add_argument("out", type=Path, help="folder of the checkpoint and the log")
    parser.add_argument("--minutes", type=float, default=60, help="length of the whole schedule")
    parser.add_argument("--steps", type=int, default=0, help="end after so many steps, whatever the time")
    parser.add_argument("--until", type=float, default=1.0, help="progress at which to stop")
    parser.add_argument("--rate", type=float, default=5e-3, help="peak learning rate")
    parser.add_argument("--init", type=Path, help="checkpoint or exported model to continue from")
    parser.add_argument("--start", type=float, default=0.0, help="progress at which the schedule starts")
    parser.add_argument(
        "--int4-from",
        type=float,
        default=0.87,
        help="progress at which quantisation-aware training starts; above 1 it never does",
    )
    parser.add_argument("--checkpoint-seconds", type=float, default=180)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--float32", action="store_true", help="compute in float32, faster on processors without bf16"
    )
    parser.add_argument("--no-compile", action="store_true", help="run the blocks without torch.compile")
    return parser.parse_args()


def starting_point(init: Path | None, start: float) -> Checkpoint:
    """The checkpoint to continue from at progress `start` or later, or random weights."""
    if init is None:
        weights = initial_weights(CONFIG)
        bias = torch.zeros(len(CONFIG.layers), CONFIG.n_routed_experts)
        return Checkpoint(weights, bias, flatten(weights), progress=start)
    checkpoint = load_checkpoint(init)
    checkpoint.progress = max(checkpoint.progress, start) if checkpoint.progress < 1 else start
    return checkpoint


def main() -> None:
    """Starts the processes and waits for them."""
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    checkpoint = starting_point(arguments.init, arguments.start)
    run = Run(
        plan=Plan(arguments.rate, arguments.start, arguments.int4_from),
        rows=arguments.rows,
        out=arguments.out,
        minutes=arguments.minutes,
        steps=arguments.steps,
        until=arguments.until,
        first_progress=checkpoint.progress,
        started=time.time() - checkpoint.progress * arguments.minutes * 60,
        checkpoint_seconds=arguments.checkpoint_seconds,
        continued=arguments.init is not None,
        compiled=not arguments.no_compile,
    )
    context = multiprocessing.get_context("spawn")
    dtype = torch.float32 if arguments.float32 else torch.bfloat16
    shared = share(checkpoint, arguments.processes, dtype, context)
    workers = [
        context.Process(target=work, args=(rank, arguments.processes, shared, run))
        for rank in range(arguments.processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise SystemExit("a training process failed")


if __name__ == "__main__":
    main()
