"""Checks a public int4 / int8 container against the checkpoint it was made from.

The container's values are dequantised by their documented layout, put into the model, and
the float32 forward pass of those values is stored beside the container.
"""

import json
from pathlib import Path
from typing import Any

import torch

from .families import BLOCK_PROMPT
from .files import (
    dequantised,
    load_json,
    read_checkpoint,
    save_tensors,
    temporary_folder,
)
from .greedy import greedy_uncached
from .models import forward, load
from .mtp import load_mtp, make_mtp
from .mtp_reference import extended_mtp

SCALES = ".qs"


def dequantise_tensor(
    packed: torch.Tensor, scales: torch.Tensor, shape: tuple[int, int], group: int
) -> tuple[torch.Tensor, str]:
    """Values [rows, cols] in float32, and the name of the format.

    int8: one signed byte a value, one scale a row. int4: two values a byte, the low nibble is the
    even column, value = nibble - 8, one scale a row or one per `group` columns (the last group
    may be short). The format follows from the byte counts.
    """
    rows, cols = shape
    row_bytes = (cols + 1) // 2
    if packed.numel() == rows * cols:
        return packed.view(torch.int8).view(rows, cols).float() * scales.view(rows, 1), "int8-row"
    if packed.numel() != rows * row_bytes:
        raise ValueError(f"{packed.numel()} bytes fit no format for {rows} x {cols}")
    pairs = packed.view(rows, row_bytes)
    nibbles = torch.stack([(pairs & 15).int() - 8, (pairs >> 4).int() - 8], -1)
    codes = nibbles.view(rows, -1)[:, :cols].float()
    if scales.numel() == rows:
        return codes * scales.view(rows, 1), "int4-row"
    groups = scales.numel() // rows
    if groups != (cols + group - 1) // group:
        raise ValueError(f"{scales.numel()} scales fit no group of {group} for {rows} x {cols}")
    spread = scales.view(rows, groups).repeat_interleave(group, 1)[:, :cols]
    return codes * spread, f"int4-g{group}"


def container_tensors(
    folder: Path, shapes: dict[str, tuple[int, int]], group: int
) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
    """All tensors in float32 by name, and how many have each format."""
    raw = read_checkpoint(folder)
    tensors: dict[str, torch.Tensor] = {}
    counts: dict[str, int] = {}
    for name, tensor in raw.items():
        if name.endswith(SCALES):
            continue
        if name + SCALES in raw:
            scales = raw[name + SCALES].float()
            tensors[name], kind = dequantise_tensor(tensor, scales, shapes[name], group)
        else:
            tensors[name], kind = tensor.float(), "f32"
        counts[kind] = counts.get(kind, 0) + 1
    return tensors, counts


def check_container(folder: Path, model_folder: Path, group: int) -> None:
    """Writes ref/reference_dequant.json and .safetensors into the container's folder."""
    config = load_json(model_folder / "config.json")
    source = dequantised(read_checkpoint(model_folder))
    shapes = {name: tuple(t.shape) for name, t in source.items() if t.dim() == 2}
    tensors, counts = container_tensors(folder, shapes, group)
    missing = sorted(set(source) - set(tensors))
    full = {name: tensors.get(name, source[name]) for name in source}
    layers = config["num_hidden_layers"]
    announced = bool(config.get("num_nextn_predict_layers"))
    config.pop("quantization_config", None)
    with temporary_folder() as scratch:
        (Path(scratch) / "config.json").write_text(json.dumps(config))
        save_tensors(full, Path(scratch) / "model.safetensors")
        model = load(Path(scratch), layers if announced else None)
    arrays: dict[str, torch.Tensor] = {}
    prompts = prompt_references(model, model_folder, arrays)
    mtp = None
    if announced and any(name.startswith(f"model.layers.{layers}.") for name in tensors):
        mtp = mtp_references(model, full, prompts, arrays)
    reference = {
        "model": model_folder.name,
        "group": group,
        "formats": counts,
        "tensors_absent_from_container": missing,
        "prompts": prompts,
        "mtp": mtp,
        "note": "float32 forward of the DEQUANTISED container weights (torch + transformers)",
    }
    (folder / "ref").mkdir(exist_ok=True)
    (folder / "ref" / "reference_dequant.json").write_text(json.dumps(reference))
    save_tensors(arrays, folder / "ref" / "reference_dequant.safetensors")
    print(f"[container {folder.name}] {counts}; absent: {len(missing)}")


def prompt_references(
    model: Any, model_folder: Path, arrays: dict[str, torch.Tensor]
) -> list[dict[str, Any]]:
    """Predictions and greedy ids of the fixture's prompts, with the distance to its logits."""
    stored = read_checkpoint(model_folder / "ref")
    prompts = []
    for number, entry in enumerate(load_json(model_folder / "ref" / "reference.json")["prompts"]):
        logits = forward(model, entry["ids"])
        if number == BLOCK_PROMPT:
            arrays[f"p{number}.logits"] = logits
        distance = float((logits - stored[f"p{number}.logits"]).abs().max())
        prompts.append(
            {
                "ids": entry["ids"],
                "argmax": [int(index) for index in logits.argmax(-1)],
                "greedy": greedy_uncached(model, entry["ids"]).as_json(),
                "max_abs_vs_unquantised": float(f"{distance:.3e}"),
            }
        )
    return prompts


def mtp_references(
    model: Any,
    tensors: dict[str, torch.Tensor],
    prompts: list[dict[str, Any]],
    arrays: dict[str, torch.Tensor],
) -> list[dict[str, Any]]:
    """Predictions of the MTP layer."""
    mtp = make_mtp(model)
    load_mtp(mtp, tensors)
    out = []
    with torch.no_grad():
        for number, entry in enumerate(prompts):
            ids, new = entry["ids"], entry["greedy"]["ids"]
            if len(ids) < 2:
                extended = extended_mtp(model, mtp, ids + new)
                out.append({"prompt": number, "over_prompt_plus_greedy": extended})
                continue
            states = model(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
            _, normed = mtp(torch.tensor([ids[1:] + new[:1]]), states.hidden_states[-1])
            logits = model.lm_head(normed)[0]
            if number == BLOCK_PROMPT:
                arrays[f"p{number}.mtp.logits"] = logits.clone()
            out.append({"prompt": number, "argmax": [int(i) for i in logits.argmax(-1)]})
    return out
