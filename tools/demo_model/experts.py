"""Routed experts as one differentiable operation: tokens are sorted by expert, and each expert multiplies
its tokens at once."""

from typing import Any

import torch
import torch.nn.functional as F


def each_group(counts: list[int]) -> list[tuple[int, slice]]:
    """The experts that have tokens, with the rows they take in the sorted order."""
    groups, start = [], 0
    for expert, count in enumerate(counts):
        if count:
            groups.append((expert, slice(start, start + count)))
        start += count
    return groups


class RoutedExperts(torch.autograd.Function):
    """out[t] = sum over the chosen experts of weight * down(silu(gate x) * up x).

    Inputs: x [T, hidden], chosen [T, K], weights [T, K], gate_up [E, 2 * width, hidden],
    down [E, hidden, width].
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        chosen: torch.Tensor,
        weights: torch.Tensor,
        gate_up: torch.Tensor,
        down: torch.Tensor,
    ) -> torch.Tensor:
        tokens, per_token = chosen.shape
        flat = chosen.reshape(-1)
        order = flat.argsort(stable=True)
        groups = each_group(torch.bincount(flat, minlength=gate_up.shape[0]).tolist())
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(tokens * per_token)
        source = order // per_token
        inputs = x.index_select(0, source)
        both = x.new_empty(tokens * per_token, gate_up.shape[1])
        for expert, rows in groups:
            torch.mm(inputs[rows], gate_up[expert].t(), out=both[rows])
        gate, up = both.chunk(2, 1)
        inner = F.silu(gate) * up
        sorted_outputs = x.new_empty(tokens * per_token, x.shape[1])
        for expert, rows in groups:
            torch.mm(inner[rows], down[expert].t(), out=sorted_outputs[rows])
        outputs = sorted_outputs.index_select(0, inverse).view(tokens, per_token, -1)
        ctx.save_for_backward(inputs, both, inner, outputs, weights, source, inverse, order, gate_up, down)
        ctx.groups = groups
        return torch.bmm(weights.to(x.dtype).view(tokens, 1, per_token), outputs).view(tokens, -1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (grad_out,) = gradients
        inputs, both, inner, outputs, weights, source, inverse, order, gate_up, down = ctx.saved_tensors
        tokens, per_token = weights.shape
        grad_weights = torch.bmm(outputs, grad_out.view(tokens, -1, 1)).view(tokens, per_token)
        share = weights.reshape(-1)[order].to(grad_out.dtype)[:, None]
        grad_outputs = grad_out.index_select(0, source) * share
        grad_inner = torch.empty_like(inner)
        grad_down = torch.zeros_like(down)
        for expert, rows in ctx.groups:
            torch.mm(grad_outputs[rows], down[expert], out=grad_inner[rows])
            torch.mm(grad_outputs[rows].t(), inner[rows], out=grad_down[expert])
        gate, up = both.chunk(2, 1)
        sigmoid = torch.sigmoid(gate)
        silu = gate * sigmoid
        grad_both = torch.cat([grad_inner * up * (sigmoid + silu * (1 - sigmoid)), grad_inner * silu], 1)
        grad_inputs = torch.empty_like(inputs)
        grad_gate_up = torch.zeros_like(gate_up)
        for expert, rows in ctx.groups:
            torch.mm(grad_both[rows], gate_up[expert], out=grad_inputs[rows])
            torch.mm(grad_both[rows].t(), inputs[rows], out=grad_gate_up[expert])
        grad_x = grad_inputs.index_select(0, inverse).view(tokens, per_token, -1).sum(1)
        return grad_x, None, grad_weights.to(weights.dtype), grad_gate_up, grad_down
