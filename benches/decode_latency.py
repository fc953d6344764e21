"""Time per token of the embedded model from Python, text and sampling included; prints the distribution.

python benches/decode_latency.py [--tokens 512] [--repeat 5] [--threads N]
"""

from __future__ import annotations

import argparse
import statistics
import time

import colibri


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args()
    gaps: list[float] = []
    with colibri.load("demo", threads=options.threads) as model:
        for seed in range(options.repeat):
            last: float | None = None
            stream = model.stream(
                "Tell me a story about a fox.", max_tokens=options.tokens, temperature=0.8, seed=seed
            )
            for chunk in stream:
                if chunk.token is None:
                    continue
                now = time.perf_counter()
                if last is not None:
                    gaps.append(now - last)
                last = now
    gaps.sort()
    print(
        f"{len(gaps)} tokens: median {statistics.median(gaps) * 1e3:.3f} ms, "
        f"p90 {gaps[int(len(gaps) * 0.9)] * 1e3:.3f} ms, p99 {gaps[int(len(gaps) * 0.99)] * 1e3:.3f} ms"
    )


if __name__ == "__main__":
    main()
