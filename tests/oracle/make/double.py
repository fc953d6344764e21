"""A `transformers` model in real float64.

The library casts to float32 inside RMSNorm, softmax, rope, router and indexer whatever the type
of the weights is. `TrueDouble` redirects those casts while its block runs.
"""

import copy
import sys
from typing import Any

import torch

from .models import forward


class _TorchWithDoubleAsFloat:
    """Stands in for the module `torch` inside the model's source files."""

    def __getattr__(self, name: str) -> Any:
        if name in ("float32", "float"):
            return torch.float64
        return getattr(torch, name)


class TrueDouble:
    """Context in which the given model computes in float64 throughout."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.modules: list[Any] = []
        self.float = torch.Tensor.float

    def __enter__(self) -> "TrueDouble":
        names = {type(module).__module__ for module in self.model.modules()}
        sources = [sys.modules[name] for name in names if name.startswith("transformers.")]
        self.modules = [source for source in sources if getattr(source, "torch", None) is torch]
        for source in self.modules:
            source.torch = _TorchWithDoubleAsFloat()
        torch.Tensor.float = torch.Tensor.double
        return self

    def __exit__(self, *_: object) -> None:
        for source in self.modules:
            source.torch = torch
        torch.Tensor.float = self.float


def double_logits(model: torch.nn.Module, prompts: list[list[int]]) -> list[torch.Tensor]:
    """Float64 logits of every prompt."""
    double = copy.deepcopy(model).double()
    with TrueDouble(double):
        return [forward(double, ids).double() for ids in prompts]
