"""Writes a checkpoint of any size with the names and shapes of `glm_moe_dsa` and Gaussian weights.

python benches/synthetic_checkpoint.py DST [--gb 1] [--dtype bf16|fp8] [--shards 4] [--seed 0] [--vocab 2560]

The same arguments give the same bytes. Weights come from a pool of 4 Mi Gaussian values, cut at drawn
places, so that writing takes no longer than the disk and memory stays below 200 MB. FP8 has one float32
scale (`weight_scale_inv`) for a block of 128 x 128, and keeps in bf16 what published FP8 checkpoints keep.
Tensors that belong together may lie in two shards, as in published checkpoints.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

DEMO = Path(__file__).resolve().parents[1] / "tests" / "data" / "demo_hf"
TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
POOL = (4 << 20) + 1
"""Values in the pool; odd, so that cuts do not fall on the same places."""
DEVIATION = 0.02
"""Standard deviation of the weights, as a fresh model's."""
BLOCK = 128
"""Rows and columns that share an FP8 scale."""
LAYERS = 4
"""Decoder layers, the first of them dense; an MTP layer follows."""
PER_TOKEN = 4
"""Experts that a token uses."""


class Widths(NamedTuple):
    """Widths of one size of model, by the keys of `config.json`."""

    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    num_attention_heads: int
    index_n_heads: int
    index_head_dim: int


WIDTHS = (
    (0.2e9, Widths(256, 768, 64, 128, 64, 32, 32, 64, 4, 2, 64)),
    (20e9, Widths(2048, 4096, 768, 768, 256, 96, 32, 128, 16, 16, 64)),
    (float("inf"), Widths(6144, 12288, 2048, 2048, 512, 192, 64, 256, 64, 32, 128)),
)
"""Widths for checkpoints below so many bytes; the last are those of GLM-5.2."""


class Tensor(NamedTuple):
    """A tensor to write."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Its size."""
        return int(np.prod(self.shape)) * {"F32": 4, "BF16": 2, "F8_E4M3": 1}[self.dtype]


class Pools:
    """Gaussian values in the stored types, cut at drawn places."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        values = self._random.standard_normal(POOL, dtype=np.float32)
        codes = _e4m3(values * np.float32(448 / 4.5))
        self._pools = {"BF16": _bf16(values * np.float32(DEVIATION)), "F8_E4M3": codes}
        self._ones = _bf16(1 + values[: 1 << 16] * np.float32(0.05))

    def write(self, file: BinaryIO, tensor: Tensor) -> None:
        """Writes one tensor."""
        count = int(np.prod(tensor.shape))
        if tensor.dtype == "F32":
            scales = tensor.name.endswith("_scale_inv")
            low, high = (0.5, 1.5) if scales else (-0.1, 0.1)
            values = self._random.uniform(low, high, count).astype(np.float32)
            if scales:
                values *= np.float32(DEVIATION * 4.5 / 448)
            file.write(values.tobytes())
        elif "norm" in tensor.name and not tensor.name.endswith("bias"):
            file.write(self._ones[:count].tobytes())
        else:
            pool = self._pools[tensor.dtype]
            while count:
                start = int(self._random.integers(POOL))
                piece = pool[start : start + min(count, POOL - start)]
                file.write(memoryview(piece))
                count -= piece.size


def _bf16(values: np.ndarray) -> np.ndarray:
    """The nearest bf16 of finite float32 values, ties to even, as 16-bit codes."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _e4m3(values: np.ndarray) -> np.ndarray:
    """The nearest e4m3fn code of float32 values, clipped at the largest, 448."""
    known = np.arange(127)
    exponent, mantissa = known >> 3, known & 7
    ladder = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    middle = (ladder[1:] + ladder[:-1]) / 2
    codes = np.searchsorted(middle, np.abs(values)).astype(np.uint8)
    return codes | (np.signbit(values).astype(np.uint8) << 7)


def tensors(
    widths: Widths, experts: int, vocab: int, dtype: str, layers: int = LAYERS, dense: int = 1
) -> Iterator[Tensor]:
    """Every tensor, in the order of the layers; the first `dense` of them have no experts."""
    hidden, heads = widths.hidden_size, widths.num_attention_heads
    key = widths.qk_nope_head_dim + widths.qk_rope_head_dim

    def matrix(name: str, rows: int, columns: int) -> Iterator[Tensor]:
        if dtype == "bf16":
            yield Tensor(f"{name}.weight", "BF16", (rows, columns))
            return
        yield Tensor(f"{name}.weight", "F8_E4M3", (rows, columns))
        yield Tensor(f"{name}.weight_scale_inv", "F32", (-(-rows // BLOCK), -(-columns // BLOCK)))

    def plain(name: str, *shape: int, kind: str = "BF16") -> Tensor:
        return Tensor(name, kind, shape)

    def feed_forward(prefix: str, width: int) -> Iterator[Tensor]:
        yield from matrix(f"{prefix}.gate_proj", width, hidden)
        yield from matrix(f"{prefix}.up_proj", width, hidden)
        yield from matrix(f"{prefix}.down_proj", hidden, width)

    yield plain("model.embed_tokens.weight", vocab, hidden)
    for layer in range(layers + 1):
        at = f"model.layers.{layer}"
        attention = f"{at}.self_attn"
        yield plain(f"{at}.input_layernorm.weight", hidden)
        yield from matrix(f"{attention}.q_a_proj", widths.q_lora_rank, hidden)
        yield plain(f"{attention}.q_a_layernorm.weight", widths.q_lora_rank)
        yield from matrix(f"{attention}.q_b_proj", heads * key, widths.q_lora_rank)
        compressed = widths.kv_lora_rank + widths.qk_rope_head_dim
        yield from matrix(f"{attention}.kv_a_proj_with_mqa", compressed, hidden)
        yield plain(f"{attention}.kv_a_layernorm.weight", widths.kv_lora_rank)
        expanded = heads * (widths.qk_nope_head_dim + widths.v_head_dim)
        yield from matrix(f"{attention}.kv_b_proj", expanded, widths.kv_lora_rank)
        yield from matrix(f"{attention}.o_proj", hidden, heads * widths.v_head_dim)
        index = widths.index_n_heads * widths.index_head_dim
        yield from matrix(f"{attention}.indexer.wq_b", index, widths.q_lora_rank)
        yield from matrix(f"{attention}.indexer.wk", widths.index_head_dim, hidden)
        yield plain(f"{attention}.indexer.k_norm.weight", widths.index_head_dim)
        yield plain(f"{attention}.indexer.k_norm.bias", widths.index_head_dim)
        yield plain(f"{attention}.indexer.weights_proj.weight", widths.index_n_heads, hidden)
        yield plain(f"{at}.post_attention_layernorm.weight", hidden)
        if layer < dense:
            yield from feed_forward(f"{at}.mlp", widths.intermediate_size)
            continue
        yield plain(f"{at}.mlp.gate.weight", experts, hidden)
        yield plain(f"{at}.mlp.gate.e_score_correction_bias", experts, kind="F32")
        for expert in range(experts):
            yield from feed_forward(f"{at}.mlp.experts.{expert}", widths.moe_intermediate_size)
        yield from feed_forward(f"{at}.mlp.shared_experts", widths.moe_intermediate_size)
        if layer == layers:
            yield plain(f"{at}.eh_proj.weight", hidden, 2 * hidden)
            for norm in ("enorm", "hnorm", "shared_head.norm"):
                yield plain(f"{at}.{norm}.weight", hidden)
    yield plain("model.norm.weight", hidden)
    yield plain("lm_head.weight", vocab, hidden)


def configuration(widths: Widths, experts: int, vocab: int, dtype: str) -> dict[str, Any]:
    """The `config.json`: the demo's with other numbers."""
    config = json.loads((DEMO / "config.json").read_text("utf-8"))
    config |= widths._asdict()
    config |= {
        "num_hidden_layers": LAYERS,
        "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 1,
        "n_routed_experts": experts,
        "num_experts_per_tok": PER_TOKEN,
        "num_key_value_heads": widths.num_attention_heads,
        "qk_head_dim": widths.qk_nope_head_dim + widths.qk_rope_head_dim,
        "head_dim": widths.qk_rope_head_dim,
        "vocab_size": vocab,
        "indexer_types": ["full"] * LAYERS,
        "index_topk_freq": 1,
    }
    if dtype == "fp8":
        config["quantization_config"] = {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
        }
    return config


def write_checkpoint(
    folder: Path, size: int, dtype: str = "bf16", shards: int = 4, seed: int = 0, vocab: int = 2560
) -> int:
    """Writes a checkpoint of about `size` bytes into an empty folder; returns the bytes of its tensors."""
    widths = next(widths for limit, widths in WIDTHS if size < limit)

    def total(experts: int) -> int:
        return sum(tensor.bytes for tensor in tensors(widths, experts, vocab, dtype))

    base, each = total(0), total(1) - total(0)
    experts = max(PER_TOKEN, round((size - base) / each))
    folder.mkdir(parents=True, exist_ok=True)
    config = configuration(widths, experts, vocab, dtype)
    (folder / "config.json").write_text(json.dumps(config, indent=1), "utf-8")
    for name in TEXT_FILES:
        shutil.copy(DEMO / name, folder / name)
    names = list(tensors(widths, experts, vocab, dtype))
    whole = sum(tensor.bytes for tensor in names)
    pools, index = Pools(seed), {}
    done = itertools.accumulate(tensor.bytes for tensor in names)
    shard_of = [min(shards - 1, (end - 1) * shards // whole) for end in done]
    for shard in range(shards):
        held = [tensor for tensor, place in zip(names, shard_of, strict=True) if place == shard]
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        index |= {tensor.name: file for tensor in held}
        _write_shard(folder / file, held, pools)
    document = {"metadata": {"total_size": whole}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(document), "utf-8")
    return whole


def _write_shard(path: Path, held: list[Tensor], pools: Pools) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in held:
        start, end = end, end + tensor.bytes
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in held:
            pools.write(file, tensor)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("destination", type=Path)
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--dtype", choices=("bf16", "fp8"), default="bf16")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vocab", type=int, default=2560)
    given = parser.parse_args()
    if given.destination.exists() and any(given.destination.iterdir()):
        parser.error(f"{given.destination} is not empty")
    size = write_checkpoint(
        given.destination, round(given.gb * 1e9), given.dtype, given.shards, given.seed, given.vocab
    )
    print(f"{size / 1e9:.3f} GB in {given.shards} files at {given.destination}")


if __name__ == "__main__":
    main()
