"""Measured facts about a fixture: tolerances, and whether every part of it is visible in the
logits."""

import contextlib
import copy
import re
from typing import Any

import torch

from .capture import Capture
from .double import double_logits
from .errors import SeedRejectedError
from .families import LONG_PROMPT
from .models import forward

LARGEST_ROUNDING_ERROR = 2e-4
SMALLEST_EFFECT = 1e-3
LATENT_NORM = re.compile(r"(q_a|kv_a)_layernorm$")


def tolerances(
    model: Any,
    prompts: list[list[int]],
    arrays: dict[str, torch.Tensor],
    cached_difference: float,
) -> dict[str, float | None]:
    """How far two correct float32 computations may be apart."""
    stored = [arrays[f"p{number}.logits"] for number in range(len(prompts))]
    exact = double_logits(model, prompts)
    rounding = max(float((a - b.double()).abs().max()) for a, b in zip(exact, stored, strict=True))
    if rounding > LARGEST_ROUNDING_ERROR:
        raise SeedRejectedError(f"f32 / f64 differ by {rounding:.1e}")
    measured = {
        "f32_vs_f64_max_abs": rounding,
        "cached_vs_uncached_max_abs": cached_difference,
        "logits_max_abs": max(float(logits.abs().max()) for logits in stored),
        "logits_std": float(torch.cat([logits.flatten() for logits in stored]).std()),
        "sdpa_vs_eager_max_abs": other_kernels(model, prompts, stored),
    }
    return {key: None if value is None else float(f"{value:.3e}") for key, value in measured.items()}


def other_kernels(model: Any, prompts: list[list[int]], stored: list[torch.Tensor]) -> float | None:
    """Same weights with fused attention and grouped experts: only the order of additions
    changes. None where the family has no such kernels."""
    try:
        other = copy.deepcopy(model)
        other.set_attn_implementation("sdpa")
        # Some families have only the plain expert loop.
        with contextlib.suppress(AttributeError, ValueError):
            other.set_experts_implementation("grouped_mm")
        return max(
            float((forward(other, ids) - logits).abs().max())
            for ids, logits in zip(prompts, stored, strict=True)
        )
    except Exception as error:
        print("   sdpa check skipped:", type(error).__name__, str(error)[:80])
        return None


def without_effect(model: Any, ids: list[int], base: torch.Tensor) -> list[tuple[str, float]]:
    """Tensors (experts one by one) whose removal hardly moves the logits. Norm weights are set to
    their neutral value, everything else to zero."""
    tensors = dict(model.named_parameters())
    persistent = model.state_dict()
    tensors.update({name: t for name, t in model.named_buffers() if name in persistent})
    found = []
    with torch.no_grad():
        for name, tensor in tensors.items():
            if not tensor.dtype.is_floating_point:
                continue
            stacked = tensor.dim() == 3 and "experts" in name
            for expert in range(tensor.shape[0]) if stacked else [None]:
                part = tensor if expert is None else tensor[expert]
                kept = part.clone()
                if "norm" in name and tensor.dim() == 1 and name.endswith("weight"):
                    part.fill_(0.0 if float(kept.mean()) < 0.5 else 1.0)
                else:
                    part.zero_()
                effect = float((forward(model, ids) - base).abs().max())
                part.copy_(kept)
                if effect < SMALLEST_EFFECT:
                    label = name if expert is None else f"{name}[{expert}]"
                    found.append((label, float(f"{effect:.1e}")))
    return found


def latent_norm_eps(
    model: Any,
    prompts: list[list[int]],
    arrays: dict[str, torch.Tensor],
    entries: list[dict[str, Any]],
) -> dict[str, Any] | None:
    """The library builds the latent norms with its own eps; this measures what the configured
    one would give and stores those logits for one prompt. None when both are the same."""
    norms = [module for name, module in model.named_modules() if LATENT_NORM.search(name)]
    configured = getattr(model.config, "rms_norm_eps", None)
    if not norms or configured is None or norms[0].variance_epsilon == configured:
        return None
    original = [norm.variance_epsilon for norm in norms]
    for norm in norms:
        norm.variance_epsilon = configured
    largest = 0.0
    for number, ids in enumerate(prompts):
        logits = forward(model, ids).clone()
        largest = max(largest, float((logits - arrays[f"p{number}.logits"]).abs().max()))
        if logits.argmax(-1).tolist() != entries[number]["argmax"]:
            raise AssertionError("the eps of the latent norms changes a prediction")
        if number == LONG_PROMPT:
            arrays[f"p{number}.logits_config_eps"] = logits
    for norm, eps in zip(norms, original, strict=True):
        norm.variance_epsilon = eps
    return {
        "reference_uses": original[0],
        "config_rms_norm_eps": configured,
        "max_abs_logit_change_if_config_eps_is_used": float(f"{largest:.3e}"),
        "arrays": f"p{LONG_PROMPT}.logits_config_eps",
    }


def router_bias_effect(model: Any, prompts: list[list[int]]) -> str | None:
    """How many selections change when the correction bias is zeroed."""
    biases = [buffer for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")]
    if not biases:
        return None
    kept = [bias.clone() for bias in biases]
    with Capture(model) as capture:
        with_bias = selections(model, prompts, capture)
        for bias in biases:
            bias.zero_()
        without_bias = selections(model, prompts, capture)
    for bias, value in zip(biases, kept, strict=True):
        bias.copy_(value)
    changed = total = 0
    for key, experts in with_bias.items():
        changed += int((experts != without_bias[key]).any(-1).sum())
        total += experts.shape[0]
    return f"{changed}/{total} token-layer selections change when the correction bias is zeroed"


def selections(model: Any, prompts: list[list[int]], capture: Capture) -> dict[tuple[int, int], torch.Tensor]:
    """Selected experts, ascending, by prompt and layer."""
    out = {}
    for number, ids in enumerate(prompts):
        capture.clear()
        forward(model, ids)
        for layer, record in capture.routers.items():
            out[number, layer] = record.experts.sort(-1)[0]
    return out
