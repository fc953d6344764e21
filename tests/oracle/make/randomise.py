"""Seeded redrawing of every parameter of a model.

Parameters are visited in the order of their names and drawn from one generator, so the result
depends on the seed and the names alone. The spread of each kind is chosen so that routers,
indexers and correction biases really decide something and logits have a spread of about 2.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

import torch

ROUTER = re.compile(r"(mlp\.gate|router|block_sparse_moe\.gate)(\.layer)?\.weight$")
QUERY_KEY = re.compile(r"(q_b_proj|q_proj|k_proj|kv_b_proj|wq_b|wk)\.weight$")


@dataclass(frozen=True)
class Draw:
    """What the distributions depend on beside the name of a parameter."""

    model_type: str
    hidden_size: int
    experts: int | None
    stored: str
    bias_scale: float


def model_parameters(model: torch.nn.Module, prefix: str = "") -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by name."""
    persistent = set(model.state_dict())
    items = {prefix + name: tensor for name, tensor in model.named_parameters()}
    items.update({prefix + name: t for name, t in model.named_buffers() if name in persistent})
    return items


def randomise(parameters: dict[str, torch.Tensor], seed: int, draw: Draw) -> None:
    """Redraws every floating-point parameter, and the hash routing table, in place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name in sorted(parameters):
            tensor = parameters[name]
            if name.endswith("tid2eid"):
                tensor.copy_(hash_routing_table(tensor.shape, draw.experts, generator))
            if not tensor.dtype.is_floating_point:
                continue
            value = draw_value(name, tensor, draw, generator)
            if draw.stored == "bf16" and "e_score_correction_bias" not in name:
                value = value.to(torch.bfloat16).float()
            tensor.copy_(value.to(tensor.dtype))


def hash_routing_table(shape: Iterable[int], experts: int, generator: torch.Generator) -> torch.Tensor:
    """Token id -> distinct experts [vocabulary, experts per token]."""
    rows, chosen = shape
    draws = [torch.randperm(experts, generator=generator)[:chosen] for _ in range(rows)]
    return torch.stack(draws)


def draw_value(name: str, tensor: torch.Tensor, draw: Draw, generator: torch.Generator) -> torch.Tensor:
    """A float32 value for one parameter."""
    shape = tuple(tensor.shape)
    last = name.rsplit(".", 1)[-1]

    def normal() -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float32)

    def uniform(low: float, high: float) -> torch.Tensor:
        unit = torch.rand(shape, generator=generator, dtype=torch.float32)
        return unit * (high - low) + low

    if name.endswith("embed_tokens.weight"):
        return normal() * 0.4 if draw.model_type == "granitemoe" else normal()
    if name.endswith("lm_head.weight"):
        return normal() * (2.0 / math.sqrt(draw.hidden_size))
    if "e_score_correction_bias" in name:
        return uniform(-1.0, 1.0) * draw.bias_scale
    if "norm" in name and tensor.dim() == 1 and last == "weight":
        zero_centred = bool((tensor == 0).all())
        return (0.0 if zero_centred else 1.0) + 0.25 * normal()
    if last == "A_log":
        return torch.log(uniform(0.5, 6.0))
    if last == "dt_bias":
        return normal() * 0.7 - 1.0
    if "sinks" in name:
        return normal()
    if "conv" in name and tensor.dim() >= 2:
        return normal() * (1.2 / math.sqrt(shape[-1]))
    if last == "bias" or last.endswith("_bias") or tensor.dim() == 1:
        value = normal() * 0.25
        return 1.0 + value if last == "global_scale" else value
    if ROUTER.search(name):
        return normal() * (1.6 / math.sqrt(draw.hidden_size))
    return normal() * matrix_scale(name, shape, draw)


def matrix_scale(name: str, shape: tuple[int, ...], draw: Draw) -> float:
    """Standard deviation of an ordinary matrix: gain / sqrt(inputs)."""
    transposed = draw.model_type == "gpt_oss" and "experts" in name and len(shape) == 3
    gain = 1.5 if QUERY_KEY.search(name) else 1.0
    if "experts" in name or "down_proj" in name or "o_proj" in name:
        gain = 1.4
    return gain / math.sqrt(shape[-2] if transposed else shape[-1])
