"""Command line of the corpus generator.

python -m demo_model.corpus train.jsonl --megabytes 60 --seed 1    one JSON string a line
python -m demo_model.corpus heldout.txt --heldout --kilobytes 200  documents one after another
"""

import argparse
import json
import sys
from pathlib import Path

from . import HELDOUT_SEED, stream


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="demo_model.corpus", description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--megabytes", type=float, default=60, help="size of a training corpus")
    parser.add_argument("--heldout", action="store_true", help="write held-out text instead")
    parser.add_argument("--kilobytes", type=float, default=200, help="size of the held-out text")
    parser.add_argument(
        "--exclude",
        type=Path,
        nargs="*",
        default=[],
        help="training corpora whose documents must not appear",
    )
    return parser.parse_args()


def main() -> None:
    """Writes documents until the size is reached."""
    arguments = parse_arguments()
    seen = set()
    for path in arguments.exclude:
        with path.open(encoding="utf-8") as file:
            seen.update(json.loads(line) for line in file)
    limit = arguments.kilobytes * 1e3 if arguments.heldout else arguments.megabytes * 1e6
    count = characters = 0
    with arguments.out.open("w", encoding="utf-8") as out:
        for text in stream(HELDOUT_SEED if arguments.heldout else arguments.seed):
            if text in seen:
                continue
            out.write(text if arguments.heldout else json.dumps(text) + "\n")
            count += 1
            characters += len(text)
            if characters >= limit:
                break
    print(f"{count} documents, {characters} characters", file=sys.stderr)


main()
