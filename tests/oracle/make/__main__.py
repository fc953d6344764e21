"""Command line of the fixture maker.

    OMP_NUM_THREADS=1 python -m make --out OUT                            # everything
    OMP_NUM_THREADS=1 python -m make --out OUT --only tokenizer,glm_tiny  # some
    python -m make --out OUT --check-container FOLDER --model glm_tiny

Run it in the folder that holds this package.
"""

import argparse
import shutil
from pathlib import Path

from . import environment  # noqa: F401  (must come before torch and transformers)
from .container import check_container
from .families import FAMILIES
from .fixture import make_fixture, write_index
from .tokenizer import TOKENIZER_FILES, make_tokenizer


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="make", description="Make the oracle fixtures.")
    parser.add_argument("--out", type=Path, required=True, help="folder the fixtures go to")
    parser.add_argument("--only", default="", help="comma-separated names, or `tokenizer`")
    parser.add_argument(
        "--search",
        type=int,
        default=400,
        help="how many seeds to try from the stored one on; 1 accepts only the stored seed",
    )
    parser.add_argument("--check-container", type=Path, help="folder of an int4/int8 container")
    parser.add_argument("--model", default="", help="fixture the container was converted from")
    parser.add_argument("--group", type=int, default=64, help="scale group of the container")
    return parser.parse_args()


def make_one(name: str, out: Path, search: int) -> None:
    """Makes one fixture; an optional family that fails is reported and left out."""
    family = FAMILIES[name]
    try:
        make_fixture(family, out, search)
    except Exception as error:
        if not family.optional:
            raise
        print(f"[{name}] skipped: {type(error).__name__}: {str(error)[:200]}", flush=True)
        shutil.rmtree(out / name, ignore_errors=True)
        return
    if family.tokenizer:
        for file in TOKENIZER_FILES:
            shutil.copy(out / "tokenizer" / file, out / name / file)


def main() -> None:
    """Makes the chosen fixtures and their index."""
    arguments = parse_arguments()
    if arguments.check_container:
        check_container(arguments.check_container, arguments.out / arguments.model, arguments.group)
        return
    chosen = [name for name in arguments.only.split(",") if name]
    unknown = set(chosen) - set(FAMILIES) - {"tokenizer"}
    if unknown:
        raise SystemExit(f"unknown fixture: {', '.join(sorted(unknown))}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    if not chosen or "tokenizer" in chosen:
        make_tokenizer(arguments.out)
    for name in FAMILIES:
        if not chosen or name in chosen:
            make_one(name, arguments.out, arguments.search)
    write_index(arguments.out)


main()
