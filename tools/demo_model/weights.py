"""Weights on disk: the published layout with one matrix per expert, and training checkpoints.

Both are safetensors files. A training checkpoint holds the stacked bf16 parameters by name, the float32
master copy of all of them in one vector `master`, the router biases `bias` [layers, experts], and in its
metadata the step, the progress and the position in the training rows.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from .architecture import CONFIG, Parameters, parameter_shapes

BIAS = "mlp.gate.e_score_correction_bias"


@dataclass
class Checkpoint:
    """State of a training run. `master` is the float32 copy of all parameters, one after another."""

    parameters: Parameters
    bias: torch.Tensor  # [layers, experts]
    master: torch.Tensor
    step: int = 0
    progress: float = 0.0
    rows_used: dict[str, int] = field(default_factory=dict)

    def biases(self) -> dict[int, torch.Tensor]:
        """Router bias by layer."""
        return dict(enumerate(self.bias))


def flatten(parameters: Parameters) -> torch.Tensor:
    """All parameters in one float32 vector, in the order of `parameter_shapes`."""
    return torch.cat([parameters[name].float().reshape(-1) for name in parameter_shapes(CONFIG)])


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Writes a training checkpoint; the file appears under its name only when it is complete."""
    state = {
        "step": checkpoint.step,
        "progress": checkpoint.progress,
        "rows_used": checkpoint.rows_used,
    }
    tensors = {**checkpoint.parameters, "bias": checkpoint.bias, "master": checkpoint.master}
    partial = path.with_name(path.name + ".partial")
    copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    save_file(copies, partial, metadata={"state": json.dumps(state)})
    partial.replace(path)


def load_checkpoint(path: Path) -> Checkpoint:
    """A training checkpoint, or the weights of an exported model (file or folder) at progress 0."""
    if path.is_dir():
        path = path / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        state = json.loads((file.metadata() or {}).get("state", "null"))
    if state is None:
        parameters, biases = unstacked_to_stacked(load_file(path))
        bias = torch.zeros(len(CONFIG.layers), CONFIG.n_routed_experts)
        for layer, values in biases.items():
            bias[layer] = values
        return Checkpoint(parameters, bias, flatten(parameters))
    tensors = load_file(path)
    bias, master = tensors.pop("bias"), tensors.pop("master")
    return Checkpoint(tensors, bias, master, state["step"], state["progress"], state["rows_used"])


def stacked_to_unstacked(parameters: Parameters, bias: torch.Tensor) -> Parameters:
    """The published layout: expert matrices one by one, bf16, router biases in float32."""
    out = {}
    for name, tensor in parameters.items():
        prefix, _, stack = name.rpartition("experts.")
        if stack not in ("gate_up", "down"):
            out[name] = tensor
            continue
        for expert, matrix in enumerate(tensor):
            if stack == "down":
                out[f"{prefix}experts.{expert}.down_proj.weight"] = matrix
            else:
                gate, up = matrix.chunk(2, 0)
                out[f"{prefix}experts.{expert}.gate_proj.weight"] = gate
                out[f"{prefix}experts.{expert}.up_proj.weight"] = up
    out = {name: t.detach().to(torch.bfloat16).clone().contiguous() for name, t in out.items()}
    for layer in CONFIG.layers:
        if not CONFIG.is_dense(layer):
            out[f"model.layers.{layer}.{BIAS}"] = bias[layer].float().clone()
    return out


def unstacked_to_stacked(tensors: Parameters) -> tuple[Parameters, dict[int, torch.Tensor]]:
    """Stacked parameters in the types they have, and the router biases by layer."""
    parameters: Parameters = {}
    biases = {}
    experts: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if name.endswith(BIAS):
            biases[int(name.split(".")[2])] = tensor
        elif ".mlp.experts." in name:
            layer, _, rest = name.partition("experts.")
            experts.setdefault(layer, {})[rest] = tensor
        else:
            parameters[name] = tensor
    for layer, parts in experts.items():
        numbers = range(CONFIG.n_routed_experts)
        both = [torch.cat([parts[f"{e}.gate_proj.weight"], parts[f"{e}.up_proj.weight"]]) for e in numbers]
        parameters[layer + "experts.gate_up"] = torch.stack(both)
        down = [parts[f"{e}.down_proj.weight"] for e in numbers]
        parameters[layer + "experts.down"] = torch.stack(down)
    return parameters, biases


def load_float(
    folder: Path, change: Callable[[str, torch.Tensor], torch.Tensor] | None = None
) -> tuple[Parameters, dict[int, torch.Tensor]]:
    """An exported model in float32; `change(name, matrix)` may replace every tensor but the router biases,
    for instance by its quantised value."""
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        value = tensor.float()
        tensors[name] = change(name, value) if change and not name.endswith(BIAS) else value
    return unstacked_to_stacked(tensors)
