"""State that the training processes share: weights, gradients, counters, barriers."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from ..architecture import CONFIG, parameter_shapes
from ..weights import Checkpoint

STATISTICS = ("model", "first_draft", "second_draft", "indexer")


class Layout:
    """Where each parameter lies in a vector of all parameters."""

    def __init__(self) -> None:
        self.shapes = parameter_shapes(CONFIG)
        self.names = list(self.shapes)
        self.offsets: dict[str, int] = {}
        self.size = 0
        for name, shape in self.shapes.items():
            self.offsets[name] = self.size
            self.size += math.prod(shape)

    def view(self, vector: torch.Tensor, name: str) -> torch.Tensor:
        """One parameter of a vector."""
        start = self.offsets[name]
        return vector[start : start + math.prod(self.shapes[name])].view(self.shapes[name])

    def views(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """All parameters of a vector."""
        return {name: self.view(vector, name) for name in self.names}


@dataclass
class Shared:
    """Tensors in shared memory, and what the processes wait on.

    `weights` is the copy the forward pass uses; `gradients` has one row a process; `statistics` and
    `counts` are sums over the current step.
    """

    master: torch.Tensor
    weights: torch.Tensor
    momentum: torch.Tensor
    second: torch.Tensor
    gradients: torch.Tensor  # [processes, parameters]
    bias: torch.Tensor  # [layers, experts]
    counts: torch.Tensor  # [processes, layers, experts]
    statistics: torch.Tensor  # [processes, kinds, sum and count]
    progress: torch.Tensor
    barrier: Any
    next_batch: Any
    next_tensor: Any
    step: int = 0
    rows_used: dict[str, int] = field(default_factory=dict)


def take(counter: Any) -> int:
    """The next number of a shared counter."""
    with counter.get_lock():
        value = counter.value
        counter.value += 1
    return value


def share(checkpoint: Checkpoint, processes: int, dtype: torch.dtype, context: Any) -> Shared:
    """Shared state that starts from a checkpoint; the forward pass computes in `dtype`."""
    master = checkpoint.master.clone()
    layers, experts = len(CONFIG.layers), CONFIG.n_routed_experts
    state = Shared(
        master=master,
        weights=master.to(dtype, copy=True),
        momentum=torch.zeros_like(master),
        second=torch.zeros_like(master),
        gradients=torch.zeros(processes, master.numel()),
        bias=checkpoint.bias.clone(),
        counts=torch.zeros(processes, layers, experts),
        statistics=torch.zeros(processes, len(STATISTICS), 2),
        progress=torch.zeros(1, dtype=torch.float64),
        barrier=context.Barrier(processes),
        next_batch=context.Value("i", 0),
        next_tensor=context.Value("i", 0),
        step=checkpoint.step,
        rows_used=dict(checkpoint.rows_used),
    )
    for value in vars(state).values():
        if isinstance(value, torch.Tensor):
            value.share_memory_()
    return state
