"""FP8 block quantisation as the published FP8 checkpoints have it: e4m3 values in blocks of
128 x 128 with one float32 scale each (`weight_scale_inv`), scale = amax / 448."""

import re
from typing import Any

import numpy as np
import torch

BLOCK = 128
LARGEST = 448.0
KEPT = re.compile(
    r"(embed_tokens|lm_head|mlp\.gate|eh_proj|indexer\.weights_proj|shared_head\.head|norm)\.weight$"
)


def fp8_quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [rows, cols] and scales [ceil(rows / 128), ceil(cols / 128)]; last blocks may be
    partial."""
    rows, cols = weight.shape
    scale = torch.zeros((rows + BLOCK - 1) // BLOCK, (cols + BLOCK - 1) // BLOCK)
    codes = torch.empty(rows, cols, dtype=torch.float8_e4m3fn)
    for a in range(scale.shape[0]):
        for b in range(scale.shape[1]):
            at = (slice(a * BLOCK, (a + 1) * BLOCK), slice(b * BLOCK, (b + 1) * BLOCK))
            block = weight[at].float()
            s = float(np.float32(max(block.abs().max().item() / LARGEST, 1e-12)))
            scale[a, b] = s
            codes[at] = (block / s).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return codes, scale


def fp8_dequantise(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """code * scale of its block, in float32."""
    rows, cols = codes.shape
    spread = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:rows, :cols]
    return codes.float() * spread


def quantise_checkpoint(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Quantises every matrix that the published FP8 checkpoints quantise."""
    out = {}
    for name, tensor in tensors.items():
        if tensor.dim() != 2 or KEPT.search(name):
            out[name] = tensor
        else:
            out[name], out[name + "_scale_inv"] = fp8_quantise(tensor.float())
    return out


def quantization_config(config: dict[str, Any]) -> dict[str, Any]:
    """The `quantization_config` entry of config.json."""
    return {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
        "modules_to_not_convert": published_exclusions(config),
    }


def published_exclusions(config: dict[str, Any]) -> list[str]:
    """`modules_to_not_convert` as published for GLM-5.2-FP8, including its naming slip: it lists
    `self_attn.indexers_proj`, a module that does not exist. The tensor is
    `indexer.weights_proj`, which is unquantised without being listed."""
    layers = config["num_hidden_layers"]
    full = [i for i in range(layers) if config["indexer_types"][i] == "full"] + [layers]
    out = ["lm_head", "model.embed_tokens", "model.norm"]
    for i in range(layers + 1):
        layer = f"model.layers.{i}."
        out += [
            layer + "input_layernorm",
            layer + "post_attention_layernorm",
            layer + "self_attn.q_a_layernorm",
            layer + "self_attn.kv_a_layernorm",
        ]
        if i >= config["first_k_dense_replace"]:
            out += [layer + "mlp.gate", layer + "mlp.gate.e_score_correction_bias"]
        if i in full:
            out += [
                layer + "self_attn.indexers_proj",
                layer + "self_attn.indexer.k_norm",
                layer + "self_attn.indexer.k_norm.bias",
            ]
    layer = f"model.layers.{layers}."
    return [*out, layer + "hnorm", layer + "enorm", layer + "eh_proj", layer + "shared_head.norm"]
