"""References of the MTP layer: logits, choices, draft chains, and what common mistakes give."""

from typing import Any

import torch

from .capture import Capture
from .errors import SeedRejectedError
from .families import BLOCK_PROMPT, Family
from .models import forward
from .mtp import Mtp
from .selection import indexer_summary, router_summary

SMALLEST_MARGIN = 1e-4
SMALLEST_DRAFT_MARGIN = 1e-3
DRAFTS = 3
# From this index_topk on nothing is pruned within the prompts, so keys are not stored.
DENSE_TOP_K = 4096

SEMANTICS = (
    "x_i = eh_proj(concat(enorm(embed(t_{i+1})), hnorm(h_i))); h_i is the hidden "
    "state AFTER model.norm; logits_i = head(shared_head.norm(layer(x)_i)) "
    "predicts t_{i+2}; position of pair i = i"
)


def mtp_reference(
    model: Any,
    mtp: Mtp,
    reference: dict[str, Any],
    arrays: dict[str, torch.Tensor],
    family: Family,
) -> None:
    """Adds the MTP entry to `reference` and the MTP arrays to `arrays`."""
    prompts = []
    worst = 1e9
    with torch.no_grad():
        for number, entry in enumerate(reference["prompts"]):
            if len(entry["ids"]) < 2:
                extended = extended_mtp(model, mtp, entry["ids"] + entry["greedy"]["ids"])
                prompts.append({"prompt": number, "over_prompt_plus_greedy": extended})
                continue
            result, margin = prompt_reference(model, mtp, number, entry, arrays, family)
            prompts.append(result)
            worst = min(worst, margin)
    if worst < SMALLEST_MARGIN:
        raise SeedRejectedError(f"mtp margin {worst:.1e}")
    reference["mtp"] = {
        "layer": mtp.layer_index,
        "has_own_embed_and_head": family.mtp == "own",
        "semantics": SEMANTICS,
        "prompts": prompts,
    }


def prompt_reference(
    model: Any,
    mtp: Mtp,
    number: int,
    entry: dict[str, Any],
    arrays: dict[str, torch.Tensor],
    family: Family,
) -> tuple[dict[str, Any], float]:
    """The entry of one prompt, and its smallest selection margin."""
    ids = entry["ids"]
    next_ids = ids[1:] + entry["greedy"]["ids"][:1]
    shifted = torch.tensor([next_ids])
    out = model(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
    hidden = out.hidden_states[-1]  # after model.norm
    if not torch.allclose(model.lm_head(hidden), out.logits):
        raise AssertionError("the last hidden state is not the input of the head")
    with Capture(model, mtp) as capture:
        raw, normed = mtp(shifted, hidden)
        margin = store_choices(capture, mtp.layer_index, f"p{number}.mtp.", model, arrays)
    logits = model.lm_head(normed)[0]
    if number in (BLOCK_PROMPT, family.hidden_prompt):
        arrays[f"p{number}.mtp.logits"] = logits.clone()
        arrays[f"p{number}.mtp.hidden"] = raw[0].clone()

    def distance(normed: torch.Tensor) -> float:
        return float(f"{float((model.lm_head(normed)[0] - logits).abs().max()):.2e}")

    one_later = torch.arange(1, len(next_ids) + 1)[None]
    chains = {
        kind: draft_chain(model, mtp, shifted, hidden, kind == "postnorm") for kind in ("prenorm", "postnorm")
    }
    if min(min(chain["top2_margin"]) for chain in chains.values()) < SMALLEST_DRAFT_MARGIN:
        raise SeedRejectedError("mtp draft margin too small")
    return {
        "prompt": number,
        "next_ids": next_ids,
        "over_prompt_plus_greedy": extended_mtp(model, mtp, ids + entry["greedy"]["ids"]),
        "argmax": [int(index) for index in logits.argmax(-1)],
        "draft_chain": chains,
        "position_shift_max_abs": distance(mtp(shifted, hidden, positions=one_later)[1]),
        "wrong_concat_order_max_abs": distance(mtp(shifted, hidden, hidden_first=True)[1]),
        "wrong_prenorm_hidden_max_abs": distance(mtp(shifted, hidden_before_norm(model, ids))[1]),
    }, margin


def store_choices(
    capture: Capture, layer: int, prefix: str, model: Any, arrays: dict[str, torch.Tensor]
) -> float:
    """Stores router and indexer choices of the MTP layer; returns the smallest margin."""
    experts, weights, margin = router_summary(capture.routers[layer])
    arrays[prefix + "router.experts"] = experts
    arrays[prefix + "router.weights"] = weights
    arrays[prefix + "router.margin"] = margin
    worst = float(margin.min())
    if layer in capture.keys and model.config.index_topk < DENSE_TOP_K:
        keys, margin = indexer_summary(capture.keys[layer], capture.scores[layer], model.config.index_topk)
        arrays[prefix + "indexer.keys"] = keys
        arrays[prefix + "indexer.margin"] = margin
        worst = min(worst, float(margin.min()))
    return worst


def draft_chain(
    model: Any, mtp: Mtp, next_ids: torch.Tensor, hidden: torch.Tensor, after_norm: bool
) -> dict[str, Any]:
    """Three drafts after the prompt. The recurrent hidden state is the layer output, taken before
    or after `shared_head.norm`; engines differ in it."""
    ids: list[int] = []
    margins: list[float] = []
    for _ in range(DRAFTS):
        raw, normed = mtp(next_ids, hidden)
        logits = model.lm_head(normed)[0, -1]
        value, index = logits.topk(2)
        ids.append(int(index[0]))
        margins.append(float(value[0] - value[1]))
        recurrent = normed if after_norm else raw
        hidden = torch.cat([hidden, recurrent[:, -1:]], 1)
        next_ids = torch.cat([next_ids, torch.tensor([ids[-1:]])], 1)
    return {"ids": ids, "top2_margin": [round(margin, 6) for margin in margins]}


def extended_mtp(model: Any, mtp: Mtp, ids: list[int]) -> dict[str, Any]:
    """Teacher-forced MTP predictions over the prompt and its greedy continuation."""
    out = model(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
    _, normed = mtp(torch.tensor([ids[1:]]), out.hidden_states[-1][:, :-1])
    value, index = model.lm_head(normed)[0].topk(2, -1)
    return {
        "argmax": index[:, 0].tolist(),
        "top2_margin": [round(float(gap), 5) for gap in (value[:, 0] - value[:, 1])],
    }


def hidden_before_norm(model: Any, ids: list[int]) -> torch.Tensor:
    """Residual stream [1, tokens, hidden] after the last layer, before the final norm."""
    with Capture(model) as capture:
        forward(model, ids)
        return capture.outputs[model.config.num_hidden_layers - 1][None]
