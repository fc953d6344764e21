"""Building, saving and loading of `transformers` models, always float32 and eager."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig

from .families import Family
from .files import (
    dequantised,
    load_json,
    read_checkpoint,
    save_tensors,
    temporary_folder,
)


def eager(model: torch.nn.Module) -> torch.nn.Module:
    """Evaluation mode with the plain expert loop."""
    model.eval()
    try:
        model.set_experts_implementation("eager")
    except (AttributeError, ValueError):
        model.config._experts_implementation = "eager"
    return model


def build(config: dict[str, Any]) -> torch.nn.Module:
    """A model from a configuration, as read back from a config.json."""
    with temporary_folder() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        parsed = AutoConfig.from_pretrained(folder)
    model_class = getattr(transformers, config["architectures"][0])
    return eager(model_class._from_config(parsed, attn_implementation="eager").float())


def load(folder: Path, mtp_layer: int | None) -> torch.nn.Module:
    """Loads a checkpoint folder; every tensor must be used, except those of the MTP layer."""
    config = load_json(folder / "config.json")
    model_class = getattr(transformers, config["architectures"][0])
    if mtp_layer is not None:
        # The library skips MTP tensors by a pattern with the published layer number in it.
        model_class._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{mtp_layer}\..*"]
    model, info = model_class.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    for problem in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if info.get(problem):
            raise ValueError(f"{problem}: {info[problem]}")
    return eager(model)


@contextmanager
def loadable_folder(family: Family, folder: Path) -> Iterator[Path]:
    """The folder to load from: `folder` itself, or for FP8 one with the dequantised weights,
    since the library has no FP8 arithmetic on the CPU."""
    if not family.fp8:
        yield folder
        return
    with temporary_folder() as scratch:
        config = load_json(folder / "config.json")
        config.pop("quantization_config")
        (Path(scratch) / "config.json").write_text(json.dumps(config))
        save_tensors(dequantised(read_checkpoint(folder)), Path(scratch) / "model.safetensors")
        yield Path(scratch)


def published_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Tensors under their published names, as `save_pretrained` writes them."""
    with temporary_folder() as folder:
        model.save_pretrained(folder)
        tensors = read_checkpoint(Path(folder))
    model_type = model.config.model_type
    return {published_name(model_type, name): tensor for name, tensor in tensors.items()}


def published_name(model_type: str, name: str) -> str:
    """`save_pretrained` inverts the library's renaming rules; for these two families the inverse
    is not exactly what is published."""
    if model_type == "deepseek_v4":  # published without "model." and with flat hc_head_*
        name = re.sub(r"^model\.", "", name)
        name = name.replace("embed_tokens.weight", "embed.weight").replace("hc_head.hc_", "hc_head_")
        name = re.sub(r"attn\.norm\.weight$", "attn.kv_norm.weight", name)
    if model_type == "kimi_linear":  # the dense MLP of layer 0 is published as mlp.*
        name = re.sub(r"block_sparse_moe\.(gate|up|down)_proj\.", r"mlp.\1_proj.", name)
    return name


def decoder_layers(model: torch.nn.Module) -> list[tuple[int, torch.nn.Module]]:
    """The decoder layers with their numbers."""
    base = getattr(model.model, "language_model", model.model)
    return list(enumerate(base.layers))


def expert_count(model: torch.nn.Module) -> int:
    """Routed experts of a layer."""
    config = model.config.get_text_config()
    for key in ("n_routed_experts", "num_local_experts", "num_experts"):
        if getattr(config, key, None):
            return getattr(config, key)
    raise ValueError("the configuration names no experts")


def vocabulary_size(model: torch.nn.Module) -> int:
    """Columns of the logits."""
    config = model.config.get_text_config()
    return getattr(config, "unpadded_vocab_size", None) or config.vocab_size


def forward(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    """Logits [tokens, vocabulary] of one sequence, without a cache."""
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0]
