"""Quantised weights put back into float32: loss, agreement with the references, draft acceptance."""

from collections.abc import Callable

import torch

from ..architecture import CONFIG
from ..network import Network
from .drafts import acceptance
from .loss import heldout_losses
from .setup import Result, Setup

GROUP = 64
Change = Callable[[torch.Tensor], torch.Tensor]


def round_rows(weight: torch.Tensor, bits: int) -> torch.Tensor:
    """Symmetric rounding with one scale a row, amax / (2^(bits - 1) - 1)."""
    largest = 2 ** (bits - 1) - 1
    scale = (weight.abs().amax(-1, keepdim=True) / largest).clamp_min(1e-12)
    return (weight / scale).round().clamp(-largest - 1, largest) * scale


def round_groups(weight: torch.Tensor, bits: int) -> torch.Tensor:
    """Symmetric rounding with one scale for every 64 inputs of a row."""
    return round_rows(weight.reshape(-1, GROUP), bits).view(weight.shape)


ROUNDINGS: dict[str, Change] = {
    "bf16": lambda weight: weight,
    "int8": lambda weight: round_rows(weight, 8),
    "int4row": lambda weight: round_rows(weight, 4),
    "int4g64": lambda weight: round_groups(weight, 4),
}
# Rounding of the layers, of the MTP layer, and of embedding and head.
SCHEMES = {
    "bf16": ("bf16", "bf16", "bf16"),
    "int4 g64, rest bf16": ("int4g64", "bf16", "bf16"),
    "int8 all": ("int8", "int8", "int8"),
    "int4 g64 + int8 emb/MTP": ("int4g64", "int8", "int8"),
    "int4 per-row + int8 emb/MTP": ("int4row", "int8", "int8"),
    "int4 g64, MTP int4 g64": ("int4g64", "int4g64", "int8"),
    "int4 g64, MTP int4 per-row": ("int4g64", "int4row", "int8"),
    "int4 g64 everywhere": ("int4g64", "int4g64", "int4g64"),
}


def rounding(layers: str, mtp: str, ends: str) -> Callable[[str, torch.Tensor], torch.Tensor]:
    """The change of every tensor; norms, router and indexer are kept."""

    def change(name: str, weight: torch.Tensor) -> torch.Tensor:
        kept = "norm" in name or "indexer" in name or name.endswith("mlp.gate.weight")
        if weight.dim() < 2 or kept:
            return weight
        if "embed_tokens" in name or "lm_head" in name:
            return ROUNDINGS[ends](weight)
        return ROUNDINGS[mtp if f"layers.{CONFIG.mtp_layer}." in name else layers](weight)

    return change


@torch.no_grad()
def agreement(setup: Setup, network: Network) -> tuple[float, str]:
    """Share of reference tokens that are the best token given the reference before them, and how many
    continuations agree throughout."""
    right = total = same = count = 0
    for prompt, greedy in setup.references():
        ids = torch.tensor([prompt + greedy])
        best = network.logits(network.hidden(ids)).argmax(-1)[0, len(prompt) - 1 : -1]
        equal = best == ids[0, len(prompt) :]
        right += int(equal.sum())
        total += len(equal)
        same += bool(equal.all())
        count += 1
    return right / total, f"{same}/{count}"


def quantisation(setup: Setup) -> Result:
    """All schemes."""
    result = {}
    for name, scheme in SCHEMES.items():
        network = setup.network(rounding(*scheme))
        losses = heldout_losses(setup, network, mtp=True)
        share, identical = agreement(setup, network)
        accepted = acceptance(setup, network)
        result[name] = {
            "loss": losses.model.value,
            "by": {kind: mean.value for kind, mean in sorted(losses.by_kind.items())},
            "mtp_loss": losses.mtp.value,
            "token_agreement": share,
            "identical_continuations": identical,
            "acceptance": accepted["conditional_acceptance"],
            "tokens_per_step": accepted["tokens_per_step"],
        }
        print(name, result[name]["loss"], flush=True)
    return result
