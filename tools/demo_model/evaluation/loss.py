"""Held-out loss: each document alone from position 0, mean over all targets; and by position in a long
context."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from ..architecture import CONFIG
from ..network import Network
from .setup import Result, Setup, batches

LONG_ROWS = 8
POSITIONS = ((0, 256), (256, 512), (512, 1024), (1024, 1536), (1536, 2047))


@dataclass
class Mean:
    """A sum and its count."""

    total: float = 0.0
    count: int = 0

    def add(self, values: torch.Tensor, mask: torch.Tensor) -> None:
        """Adds the values where the mask is set."""
        self.total += (values * mask).sum().item()
        self.count += int(mask.sum())

    @property
    def value(self) -> float:
        return self.total / self.count


@dataclass
class Losses:
    """Loss in nats a token of the decoder, by kind of document, and of the MTP layer."""

    model: Mean = field(default_factory=Mean)
    by_kind: dict[str, Mean] = field(default_factory=dict)
    mtp: Mean = field(default_factory=Mean)


def token_losses(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy [B, L] of logits [B, L, vocabulary]."""
    flat = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
    return flat.view(targets.shape)


@torch.no_grad()
def heldout_losses(setup: Setup, network: Network, sparse: bool = True, mtp: bool = False) -> Losses:
    """Losses over all held-out documents."""
    losses = Losses()
    for numbers, ids, mask in batches(setup.documents):
        hidden = network.hidden(ids, sparse)
        values = token_losses(network.logits(hidden[:, :-1]), ids[:, 1:])
        losses.model.add(values, mask[:, 1:])
        for row, number in enumerate(numbers):
            kind = setup.kind(setup.documents[number])
            losses.by_kind.setdefault(kind, Mean()).add(values[row], mask[row, 1:])
        if mtp:
            raw = network.mtp(hidden[:, :-1], ids[:, 1:], sparse)
            values = token_losses(network.mtp_logits(raw[:, :-1]), ids[:, 2:])
            losses.mtp.add(values, mask[:, 2:])
    return losses


def loss(setup: Setup) -> Result:
    """Held-out loss with and without sparse attention."""
    network = setup.network()
    sparse = heldout_losses(setup, network, sparse=True, mtp=True)
    dense = heldout_losses(setup, network, sparse=False)
    return {
        "sparse": sparse.model.value,
        "by": {kind: mean.value for kind, mean in sorted(sparse.by_kind.items())},
        "tokens": sparse.model.count,
        "mtp": sparse.mtp.value,
        "dense": dense.model.value,
    }


@torch.no_grad()
def long_context(setup: Setup) -> Result:
    """Loss by position in contexts of packed documents, with the indexer's choice and without."""
    network = setup.network()
    length = CONFIG.max_position_embeddings
    rows = setup.joined[: length * LONG_ROWS].view(LONG_ROWS, 1, length)
    result: Result = {}
    for name, sparse in (("dsa", True), ("dense", False)):
        values = torch.zeros(length - 1)
        for ids in rows:
            logits = network.logits(network.hidden(ids, sparse)[:, :-1])
            values += token_losses(logits, ids[:, 1:])[0] / LONG_ROWS
        result[name] = {f"{a}-{b}": values[a:b].mean().item() for a, b in POSITIONS}
    return result
