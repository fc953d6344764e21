"""Forward hooks that record what a model chose: layer and block outputs, router choices, and the
keys and scores of the sparse-attention indexer."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .models import decoder_layers

BLOCKS = ("self_attn", "linear_attn", "attn", "mlp", "block_sparse_moe")


@dataclass
class RouterRecord:
    """One router call. `score` maps logits to the scores that selection uses before the bias;
    None when a fixed table selects."""

    logits: torch.Tensor  # [tokens, experts]
    weights: torch.Tensor  # [tokens, chosen]
    experts: torch.Tensor  # [tokens, chosen]
    bias: torch.Tensor | None  # [experts]
    groups: int
    chosen_groups: int
    score: Callable[[torch.Tensor], torch.Tensor] | None


def first(output: Any) -> torch.Tensor:
    """The tensor of a module output that may be a tuple."""
    return output[0] if isinstance(output, tuple) else output


def softmax_score(logits: torch.Tensor) -> torch.Tensor:
    """Selection score of a softmax router."""
    return logits.softmax(-1)


class Capture:
    """Records of the latest forward pass, by layer number.

    The indexer returns only the keys it chose; its scores are read from the call of
    `Tensor.topk` inside it.
    """

    def __init__(self, model: torch.nn.Module, mtp: Any = None) -> None:
        self.outputs: dict[int, torch.Tensor] = {}
        self.blocks: dict[tuple[str, int], torch.Tensor] = {}
        self.routers: dict[int, RouterRecord] = {}
        self.keys: dict[int, torch.Tensor] = {}
        self.scores: dict[int, torch.Tensor] = {}
        self.layers = decoder_layers(model)
        if mtp is not None:
            self.layers.append((mtp.layer_index, mtp.block))
        self._handles: list[Any] = []
        self._original_topk: Any = None
        for index, layer in self.layers:
            self._watch(index, layer)

    def __enter__(self) -> "Capture":
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def clear(self) -> None:
        """Forgets the records of earlier passes."""
        for records in (self.outputs, self.blocks, self.routers, self.keys, self.scores):
            records.clear()

    def _watch(self, index: int, layer: torch.nn.Module) -> None:
        self._handles.append(layer.register_forward_hook(self._on_layer(index)))
        for name, module in layer.named_modules():
            class_name = type(module).__name__
            if class_name.endswith("Router"):
                self._handles.append(module.register_forward_hook(self._on_router(index)))
            elif re.search(r"(Dsa|V32)Indexer$", class_name):
                self._handles.append(module.register_forward_pre_hook(self._before_indexer(index)))
                self._handles.append(module.register_forward_hook(self._on_indexer(index)))
            elif name in BLOCKS:
                self._handles.append(module.register_forward_hook(self._on_block(index, name)))

    def _on_layer(self, index: int) -> Callable[..., None]:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            self.outputs[index] = first(output).detach()[0]

        return hook

    def _on_block(self, index: int, name: str) -> Callable[..., None]:
        kind = "attn_out" if "attn" in name else "mlp_out"

        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            value = first(output).detach()
            self.blocks[kind, index] = value[0] if value.dim() == 3 else value

        return hook

    def _on_router(self, index: int) -> Callable[..., None]:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            logits, weights, experts = (part.detach() for part in output[:3])
            # MiniMax M2 passes the bias as an argument.
            bias = inputs[1] if len(inputs) > 1 else getattr(module, "e_score_correction_bias", None)
            if type(module).__name__.endswith("HashRouter"):
                score = None
            elif hasattr(module, "score_fn"):
                score = module.score_fn
            else:
                score = softmax_score if bias is None else torch.sigmoid
            self.routers[index] = RouterRecord(
                logits,
                weights,
                experts,
                None if bias is None else bias.detach(),
                getattr(module, "num_group", 1) or 1,
                getattr(module, "topk_group", 1) or 1,
                score,
            )

        return hook

    def _before_indexer(self, index: int) -> Callable[..., None]:
        def hook(_module: Any, _inputs: Any) -> None:
            if self._original_topk is not None:
                return
            original = self._original_topk = torch.Tensor.topk

            def recording_topk(tensor: torch.Tensor, k: int, *rest: Any, **named: Any) -> Any:
                self.scores[index] = tensor.detach()[0]
                return original(tensor, k, *rest, **named)

            torch.Tensor.topk = recording_topk

        return hook

    def _on_indexer(self, index: int) -> Callable[..., None]:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            if self._original_topk is not None:
                torch.Tensor.topk, self._original_topk = self._original_topk, None
            self.keys[index] = output.detach()[0]

        return hook
