"""Reading and writing of checkpoints and references.

Safetensors files get the mode 0644 whatever the library chose. JSON is written with one key (and
one prompt) a line: readable, without one number a line.
"""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from .fp8 import fp8_dequantise

# Published as F32 whatever the type of the matrices is.
ALWAYS_F32 = re.compile(r"(gate\.bias|attn_sink|\.ape|hc_(attn|ffn|head)_(fn|base|scale))$")


def dump_json(value: dict[str, Any], path: Path) -> None:
    """Writes `value` with one top-level key a line, and one line for each entry of a list of
    objects."""

    def one_line(item: Any) -> str:
        return json.dumps(item, ensure_ascii=False, separators=(", ", ": "))

    rows = []
    for key, item in value.items():
        if isinstance(item, list) and item and isinstance(item[0], dict):
            text = "[\n  " + ",\n  ".join(one_line(entry) for entry in item) + "\n ]"
        else:
            text = one_line(item)
        rows.append(f" {json.dumps(key)}: {text}")
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


def load_json(path: Path) -> Any:
    """Parses a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def save_tensors(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Writes one safetensors file."""
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, path, metadata={"format": "pt"})
    path.chmod(0o644)


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Size of a tensor's data in bytes."""
    return tensor.numel() * tensor.element_size()


def split_shards(tensors: dict[str, torch.Tensor], shards: int) -> list[dict[str, torch.Tensor]]:
    """Cuts the tensors, in the order of their names, into parts of about equal size."""
    total = sum(tensor_bytes(tensor) for tensor in tensors.values())
    parts: list[dict[str, torch.Tensor]] = []
    current: dict[str, torch.Tensor] = {}
    size = 0
    for name in sorted(tensors):
        count = tensor_bytes(tensors[name])
        if current and size + count > total / shards and len(parts) < shards - 1:
            parts.append(current)
            current, size = {}, 0
        current[name] = tensors[name]
        size += count
    return [*parts, current]


def write_checkpoint(folder: Path, tensors: dict[str, torch.Tensor], shards: int) -> None:
    """Writes model.safetensors, or numbered shards and their index; older weights are removed."""
    for old in [*folder.glob("*.safetensors"), *folder.glob("*index.json")]:
        old.unlink()
    if shards == 1:
        save_tensors(tensors, folder / "model.safetensors")
        return
    parts = split_shards(tensors, shards)
    weight_map = {}
    for number, part in enumerate(parts, start=1):
        file = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        save_tensors(part, folder / file)
        weight_map.update(dict.fromkeys(part, file))
    index = {
        "metadata": {"total_size": sum(tensor_bytes(tensor) for tensor in tensors.values())},
        "weight_map": dict(sorted(weight_map.items())),
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


def read_checkpoint(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of the safetensors files of a folder."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(path))
    return tensors


def storage_type(name: str, tensor: torch.Tensor, stored: str) -> torch.Tensor:
    """Casts a tensor to the type it has in the checkpoint."""
    if not tensor.dtype.is_floating_point:
        return tensor
    if stored == "f32" or "e_score_correction_bias" in name or ALWAYS_F32.search(name):
        return tensor.float()
    return tensor.to(torch.bfloat16)


def dequantised(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The checkpoint in float32, FP8 matrices multiplied by their block scales."""
    out = {}
    for name, tensor in tensors.items():
        if name.endswith("_scale_inv"):
            continue
        if tensor.dtype == torch.float8_e4m3fn:
            tensor = fp8_dequantise(tensor, tensors[name + "_scale_inv"])
        out[name] = tensor.float() if tensor.dtype.is_floating_point else tensor
    return out


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """A scratch folder that is removed when its `with` block ends."""
    return tempfile.TemporaryDirectory(prefix="oracle_")
