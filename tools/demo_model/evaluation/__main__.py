"""Command line of the measurements.

    python -m demo_model.evaluation MODEL --heldout eval_heldout.txt --prompts prompts.json --out results.json
    ... --only loss,drafts

`samples` writes the prompts file; `drafts` and `quantisation` read it. `parity` and `samples` need
transformers.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch

from .drafts import drafts
from .exact_match import exact_match
from .loss import long_context, loss
from .quantisation import quantisation
from .routing import indexer, skew
from .setup import Result, Setup


def parity(setup: Setup) -> Result:
    from .references import parity

    return parity(setup)


def samples(setup: Setup) -> Result:
    from .references import samples

    return samples(setup)


# In the order in which they can be run one after another.
MEASUREMENTS: dict[str, Callable[[Setup], Result]] = {
    "parity": parity,
    "loss": loss,
    "long_context": long_context,
    "indexer": indexer,
    "samples": samples,
    "drafts": drafts,
    "skew": skew,
    "exact_match": exact_match,
    "quantisation": quantisation,
}


def main() -> None:
    """Runs the chosen measurements and updates the results file after each."""
    parser = argparse.ArgumentParser(prog="demo_model.evaluation")
    parser.add_argument("model", type=Path, help="exported model folder")
    parser.add_argument("--heldout", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(MEASUREMENTS))
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    chosen = arguments.only.split(",")
    unknown = set(chosen) - set(MEASUREMENTS)
    if unknown:
        parser.error(f"unknown measurement: {', '.join(sorted(unknown))}")
    torch.set_num_threads(arguments.threads)
    setup = Setup(arguments.model, arguments.heldout, arguments.prompts)
    results = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for name in chosen:
        started = time.monotonic()
        results[name] = MEASUREMENTS[name](setup)
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


main()
