"""Prints the tables of the README from the results of the measurements.

python -m demo_model.report results.json
"""

import argparse
import json
from pathlib import Path
from typing import Any


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def joined(values: list[float], digits: int) -> str:
    """Numbers separated by slashes."""
    return " / ".join(f"{value:.{digits}f}" for value in values)


def parity(result: dict[str, Any]) -> str:
    header = ["length", "max abs diff", "argmax equal", "diff without sparse attention"]
    return table(
        header,
        [
            [
                length,
                f"{row['max_abs_diff']:.1e}",
                f"{row['argmax_equal']:.4f}",
                f"{row['max_abs_diff_dense']:.2g}",
            ]
            for length, row in result.items()
        ],
    )


def loss(result: dict[str, Any]) -> str:
    kinds = ", ".join(f"{kind} {value:.3f}" for kind, value in result["by"].items())
    return (
        f"Held-out loss (nats a token, {result['tokens']} tokens): {result['sparse']:.4f} (sparse), "
        f"{result['dense']:.4f} (dense); MTP layer {result['mtp']:.4f}; by kind: {kinds}"
    )


def long_context(result: dict[str, Any]) -> str:
    header = ["position in packed long context", *result["dsa"]]
    rows = [[name, *(f"{value:.3f}" for value in values.values())] for name, values in result.items()]
    return table(header, rows)


def indexer(result: dict[str, Any]) -> str:
    header = ["layer", "attention mass kept by the indexer", "most recent keys", "best possible keys"]
    keys = ("indexer", "recent", "oracle")
    return table(header, [[layer, *(f"{row[key]:.3f}" for key in keys)] for layer, row in result.items()])


def drafts(result: dict[str, Any]) -> str:
    return (
        "Acceptance of draft 1/2/3 given the earlier ones were accepted: "
        f"{joined(result['conditional_acceptance'], 3)} (positions {result['positions']}); tokens a "
        f"verification step with 1/2/3 drafts: {joined(list(result['tokens_per_step'].values()), 2)}"
    )


def skew(result: dict[str, Any]) -> str:
    header = [
        "layer",
        "share of the top 25 % experts",
        "within one document",
        "text vs tools total variation",
        "least used / mean",
    ]
    keys = ("top25", "top25_within_document", "text_vs_tools_total_variation", "min_over_mean")
    layers = result["top25"]
    return table(header, [[layer, *(f"{result[key][layer]:.3f}" for key in keys)] for layer in layers])


def quantisation(result: dict[str, Any]) -> str:
    header = [
        "weights",
        "held-out loss",
        "MTP loss",
        "greedy token agreement",
        "identical continuations",
        "acceptance 1/2/3",
        "tokens a step 1/2/3",
    ]
    return table(
        header,
        [
            [
                name,
                f"{row['loss']:.4f}",
                f"{row['mtp_loss']:.4f}",
                f"{row['token_agreement']:.4f}",
                row["identical_continuations"],
                joined(row["acceptance"], 3),
                joined(list(row["tokens_per_step"].values()), 2),
            ]
            for name, row in result.items()
        ],
    )


def exact_match(result: dict[str, Any]) -> str:
    header = ["exact match of the last answer (greedy)", "accuracy"]
    return table(header, [[kind, f"{share:.2f}"] for kind, share in result.items()])


SECTIONS = {
    "parity": parity,
    "loss": loss,
    "long_context": long_context,
    "indexer": indexer,
    "drafts": drafts,
    "skew": skew,
    "exact_match": exact_match,
    "quantisation": quantisation,
}


def main() -> None:
    """Prints a section for every measurement that was run."""
    parser = argparse.ArgumentParser(prog="demo_model.report")
    parser.add_argument("results", type=Path)
    results = json.loads(parser.parse_args().results.read_text())
    print("\n\n".join(show(results[name]) for name, show in SECTIONS.items() if name in results))


if __name__ == "__main__":
    main()
