"""Updates of single tensors: Muon for matrices, AdamW for embedding, head, router, norms and indexer; and
the int4 grid of quantisation-aware training."""

import math
from dataclasses import dataclass

import torch

from ..architecture import CONFIG

GROUP = 64
MUON_MOMENTUM = 0.95
MUON_DECAY = 0.1
ADAM_DECAY = 0.02
BETAS = (0.9, 0.97)
# Bias correction of the moments stops changing here.
CORRECTED_STEPS = 500
INDEXER_RATE = 1e-3


@dataclass
class Slot:
    """One parameter with its float32 master copy, momentum and second moment."""

    name: str
    weight: torch.Tensor
    momentum: torch.Tensor
    second: torch.Tensor


def uses_muon(name: str, dimensions: int) -> bool:
    """Whether a parameter is a matrix of the layers."""
    other = "embed" in name or "lm_head" in name or "indexer" in name or name.endswith("mlp.gate.weight")
    return dimensions >= 2 and not other


def is_int4(name: str) -> bool:
    """Whether quantisation-aware training rounds a parameter: the matrices of the decoder layers but router
    and indexer."""
    parts = name.split(".")
    if not name.startswith("model.layers.") or int(parts[2]) == CONFIG.mtp_layer:
        return False
    return not ("indexer" in name or "norm" in name or name.endswith("mlp.gate.weight"))


def int4_grid(weight: torch.Tensor) -> torch.Tensor:
    """Nearest values of the symmetric int4 grid with groups of 64 inputs.

    The scale is amax / 7 rounded up to five significant bits, so that scale * code is exact in bf16 and a
    quantiser with scale = amax / 7 finds the same codes again.
    """
    groups = weight.reshape(-1, GROUP)
    scale = (groups.abs().amax(1, keepdim=True) / 7).clamp_min(1e-8)
    mantissa, exponent = torch.frexp(scale)
    scale = torch.ldexp(torch.ceil(mantissa * 32) / 32, exponent)
    return ((groups / scale).round().clamp(-7, 7) * scale).view(weight.shape)


def orthogonalise(gradient: torch.Tensor) -> torch.Tensor:
    """Newton-Schulz iteration of Muon towards the nearest semi-orthogonal matrix, for stacks as well."""
    x = gradient.bfloat16()
    tall = x.size(-2) > x.size(-1)
    if tall:
        x = x.mT
    x = x / (x.float().norm(dim=(-2, -1), keepdim=True) + 1e-7).bfloat16()
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * (square @ square)) @ x
    return (x.mT if tall else x).float()


def muon_update(slot: Slot, gradient: torch.Tensor, rate: float) -> None:
    """One step of Muon with Nesterov momentum."""
    slot.momentum.mul_(MUON_MOMENTUM).add_(gradient)
    update = gradient + MUON_MOMENTUM * slot.momentum
    if not update.any():
        return
    update = orthogonalise(update) * (0.2 * math.sqrt(max(slot.weight.shape[-2:])))
    slot.weight.mul_(1 - rate * MUON_DECAY).add_(update, alpha=-rate)


def adam_rate(name: str, dimensions: int, rate: float, progress: float) -> float:
    """Rate of a parameter: the indexer keeps a floor until the last part, the rest a share of the rate."""
    if "indexer" in name:
        return max(rate, INDEXER_RATE) if progress < 0.95 else rate
    if name.endswith("mlp.gate.weight"):
        return rate * 0.6
    return rate * (0.5 if dimensions == 1 else 0.8)


def adam_update(slot: Slot, gradient: torch.Tensor, rate: float, progress: float, step: int) -> None:
    """One step of AdamW; only embedding and head decay."""
    if "indexer" in slot.name and not gradient.any():
        return
    dimensions = slot.weight.dim()
    slot.momentum.mul_(BETAS[0]).add_(gradient, alpha=1 - BETAS[0])
    slot.second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
    if dimensions == 2 and "indexer" not in slot.name and "gate" not in slot.name:
        slot.weight.mul_(1 - rate * ADAM_DECAY)
    count = min(step + 1, CORRECTED_STEPS)
    momentum = slot.momentum / (1 - BETAS[0] ** count)
    second = (slot.second / (1 - BETAS[1] ** count)).sqrt_().add_(1e-10)
    slot.weight.addcdiv_(momentum, second, value=-adam_rate(slot.name, dimensions, rate, progress))


def update(slot: Slot, gradient: torch.Tensor, rate: float, progress: float, step: int) -> None:
    """One step of the optimiser that the parameter has."""
    if uses_muon(slot.name, slot.weight.dim()):
        muon_update(slot, gradient, rate)
    else:
        adam_update(slot, gradient, rate, progress, step)
