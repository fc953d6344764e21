"""Held-out loss of one checkpoint under every weight format and activation precision; writes docs/quality.md.

    python tools/quality.py CHECKPOINT [--heldout tests/data/eval_heldout.txt] [--output docs/quality.md]

CHECKPOINT is a small float checkpoint in Hugging Face layout. Every variant is converted by colibri's own
converter into a scratch folder and run through the public Python API. The reference is the same checkpoint
run in float32. Each document is run alone from position 0; the loss is the mean over all targets.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import colibri
import numpy as np
from tokenizers import Tokenizer

DOCUMENT_START = "[gMASK]<sop>"
MARK_BEGIN = "<!-- table: python tools/quality.py -->"
MARK_END = "<!-- end of table -->"


@dataclass(frozen=True)
class Variant:
    """One row of the table: how the weights are stored and how they are multiplied."""

    name: str
    experts: str
    dense: str
    scale_rule: str
    numerics: str


VARIANTS = (
    Variant("q8, A16", "q8", "q8", "absmax", "quantized"),
    Variant("q8, A8", "q8", "q8", "absmax", "a8"),
    Variant("q4g64 absmax, A16", "q4g64", "q4g64", "absmax", "quantized"),
    Variant("q4g64 absmax, A8", "q4g64", "q4g64", "absmax", "a8"),
    Variant("q4g64 search, A16 (default)", "q4g64", "q4g64", "search", "quantized"),
    Variant("q4g64 search, A8", "q4g64", "q4g64", "search", "a8"),
    Variant("q4g64 search, exact activations", "q4g64", "q4g64", "search", "f32"),
    Variant("q4row absmax, A16", "q4row", "q4row", "absmax", "quantized"),
    Variant("q4row search, A16", "q4row", "q4row", "search", "quantized"),
    Variant("q4row search, A8", "q4row", "q4row", "search", "a8"),
    Variant("q3g64 absmax, A16", "q3g64", "q3g64", "absmax", "quantized"),
    Variant("q3g64 search, A16", "q3g64", "q3g64", "search", "quantized"),
    Variant("experts q3g64, dense q4g64, absmax, A16", "q3g64", "q4g64", "absmax", "quantized"),
    Variant("experts q3g64, dense q4g64, search, A16", "q3g64", "q4g64", "search", "quantized"),
    Variant("experts q3g64, dense q8, search, A16", "q3g64", "q8", "search", "quantized"),
    Variant("experts q4g64, dense q8, search, A16", "q4g64", "q8", "search", "quantized"),
)

# What is compared, and the rows with absmax and with searched scales.
RULES = (
    ("q4g64", "q4g64 absmax, A16", "q4g64 search, A16 (default)"),
    ("q4row", "q4row absmax, A16", "q4row search, A16"),
    ("q3g64", "q3g64 absmax, A16", "q3g64 search, A16"),
    (
        "experts q3g64 with dense q4g64",
        "experts q3g64, dense q4g64, absmax, A16",
        "experts q3g64, dense q4g64, search, A16",
    ),
)


@dataclass(frozen=True)
class Score:
    """Loss in nats per token, agreement of the best token, and the divergence from the reference in nats."""

    loss: float
    agreement: float
    divergence: float
    targets: int


def documents(checkpoint: Path, heldout: Path) -> list[np.ndarray]:
    """Token ids of every held-out document: the text is split before each document start."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    text = heldout.read_text(encoding="utf-8")
    parts = [DOCUMENT_START + part for part in text.split(DOCUMENT_START)[1:]]
    return [np.array(tokenizer.encode(part, add_special_tokens=False).ids, dtype=np.int32) for part in parts]


def log_probabilities(model: colibri.Model, tokens: np.ndarray) -> np.ndarray:
    """Log-probabilities of the next token after every position but the last, [n - 1, vocabulary]."""
    logits = model.logits(tokens)[:-1].astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def score(
    model: colibri.Model, docs: list[np.ndarray], reference: list[np.ndarray] | None
) -> tuple[Score, list[np.ndarray]]:
    """Runs all documents; returns the score and the log-probabilities (float32) of every document."""
    kept: list[np.ndarray] = []
    loss = divergence = 0.0
    agree = targets = 0
    for index, tokens in enumerate(docs):
        rows = log_probabilities(model, tokens)
        loss -= rows[np.arange(len(rows)), tokens[1:]].sum()
        targets += len(rows)
        if reference is not None:
            other = reference[index].astype(np.float64)
            agree += int((other.argmax(axis=1) == rows.argmax(axis=1)).sum())
            divergence += float((np.exp(other) * (other - rows)).sum())
        else:
            kept.append(rows.astype(np.float32))
    share = agree / targets if reference is not None else 1.0
    return Score(float(loss) / targets, share, divergence / targets, targets), kept


def measure(checkpoint: Path, heldout: Path) -> tuple[Score, dict[str, tuple[Score, int]]]:
    """The float32 reference score, and for every variant its score and container size in bytes."""
    docs = documents(checkpoint, heldout)
    with colibri.load(checkpoint, numerics="f32") as model:
        base, reference = score(model, docs, None)
    rows: dict[str, tuple[Score, int]] = {}
    with tempfile.TemporaryDirectory(prefix="colibri-quality-") as scratch:
        for variant in VARIANTS:
            started = time.perf_counter()
            folder = Path(scratch) / f"{variant.experts}-{variant.dense}-{variant.scale_rule}"
            if not folder.exists():
                colibri.convert(
                    checkpoint,
                    folder,
                    experts=variant.experts,
                    dense=variant.dense,
                    scale_rule=variant.scale_rule,
                )
            with colibri.load(folder, numerics=variant.numerics) as model:
                result, _ = score(model, docs, reference)
            size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
            rows[variant.name] = (result, size)
            print(f"{variant.name}: {result} in {time.perf_counter() - started:.1f} s", file=sys.stderr)
    return base, rows


def table(base: Score, rows: dict[str, tuple[Score, int]]) -> str:
    """The markdown table."""
    lines = [
        "| weights and activations | loss | above f32 | best token agrees | mean KL from f32 | shards, MB |",
        "|---|---|---|---|---|---|",
        f"| f32 | {base.loss:.5f} | | | | |",
    ]
    for name, (result, size) in rows.items():
        lines.append(
            f"| {name} | {result.loss:.5f} | {result.loss - base.loss:+.5f} | {result.agreement:.4f} "
            f"| {result.divergence:.5f} | {size / 1e6:.2f} |"
        )
    lines.append("")
    lowered = []
    for name, absmax, search in RULES:
        increase = [rows[row][0].loss - base.loss for row in (absmax, search)]
        lowered.append(f"{name} {100 * (1 - increase[1] / increase[0]):.0f} %")
    lines.append(f"Searched scales lower the loss increase against absmax (A16): {', '.join(lowered)}.")
    lines.append("")
    lines.append(f"{base.targets} targets; {platform.machine()}, Python {platform.python_version()}.")
    return "\n".join(lines)


def write_between_marks(path: Path, text: str) -> None:
    """Replaces what stands between the two marks of the document; the prose around it stays."""
    document = path.read_text(encoding="utf-8")
    head, rest = document.split(MARK_BEGIN, 1)
    tail = rest.split(MARK_END, 1)[1]
    path.write_text(f"{head}{MARK_BEGIN}\n{text}\n{MARK_END}{tail}", encoding="utf-8")


def main() -> None:
    """Command line."""
    root = Path(__file__).resolve().parents[1]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--heldout", type=Path, default=root / "tests/data/eval_heldout.txt")
    parser.add_argument("--output", type=Path, default=root / "docs/quality.md")
    parser.add_argument("--json", action="store_true", help="print the figures and leave the document alone")
    options = parser.parse_args()
    base, rows = measure(options.checkpoint, options.heldout)
    if options.json:
        print(
            json.dumps(
                {"f32": base.__dict__, **{name: row.__dict__ for name, (row, _) in rows.items()}}, indent=1
            )
        )
    else:
        write_between_marks(options.output, table(base, rows))


if __name__ == "__main__":
    main()
