"""Comparison with transformers, and the reference continuations it gives."""

import json
from typing import Any

import torch
from transformers import AutoTokenizer, GlmMoeDsaForCausalLM

from ..architecture import CONFIG
from .prompts import PROMPTS, TOOLS, Prompt
from .setup import Result, Setup

LENGTHS = (100, 256, 600, 1024)
NEW_TOKENS = 320
STOPS = ("<|user|>", "<|observation|>", "<|endoftext|>")


def load_reference(setup: Setup) -> Any:
    """The model in transformers, float32; only the MTP layer may be left over."""
    model, info = GlmMoeDsaForCausalLM.from_pretrained(
        setup.model, dtype=torch.float32, output_loading_info=True
    )
    mtp = f"layers.{CONFIG.mtp_layer}."
    left_over = [key for key in info["unexpected_keys"] if mtp not in key]
    if info["missing_keys"] or info["mismatched_keys"] or left_over:
        raise ValueError(f"the checkpoint does not fit: {info}")
    return model.eval()


@torch.no_grad()
def parity(setup: Setup) -> Result:
    """Largest difference of logits between this code and transformers on packed documents, and what
    leaving the sparse attention out would give."""
    model, network = load_reference(setup), setup.network()
    result = {}
    for length in LENGTHS:
        ids = setup.joined[:length][None]
        reference = model(ids).logits
        sparse = network.logits(network.hidden(ids))
        dense = network.logits(network.hidden(ids, sparse=False))
        result[str(length)] = {
            "max_abs_diff": (reference - sparse).abs().max().item(),
            "argmax_equal": (reference.argmax(-1) == sparse.argmax(-1)).float().mean().item(),
            "max_abs_diff_dense": (reference - dense).abs().max().item(),
            "logit_absmax": reference.abs().max().item(),
        }
    return result


@torch.no_grad()
def continue_prompt(model: Any, tokenizer: Any, prompt: Prompt) -> Result:
    """Greedy continuations of all turns of one prompt."""
    tools = [TOOLS[name] for name in prompt.tools] if prompt.tools else None
    stop_ids = model.config.eos_token_id
    messages: list[dict[str, str]] = []
    turns = []
    for said in [prompt.user] if isinstance(prompt.user, str) else prompt.user:
        if isinstance(prompt.user, str):
            text = "[gMASK]<sop>" + said
        else:
            messages.append({"role": "user", "content": said})
            text = tokenizer.apply_chat_template(
                messages, tools=tools, add_generation_prompt=True, tokenize=False
            )
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            eos_token_id=stop_ids,
            pad_token_id=stop_ids[0],
        )
        new = out[0, ids.shape[1] :]
        answer = continuation = tokenizer.decode(new, skip_special_tokens=False)
        for stop in STOPS:
            answer = answer.replace(stop, "")
        turns.append(
            {
                "prompt": text,
                "prompt_ids": ids[0].tolist(),
                "greedy_ids": new.tolist(),
                "text": continuation,
            }
        )
        messages.append({"role": "assistant", "content": answer})
    return {"name": prompt.name, "user": prompt.user, "tools": tools, "turns": turns}


def samples(setup: Setup) -> Result:
    """Writes the reference continuations of all prompts."""
    model = load_reference(setup)
    tokenizer = AutoTokenizer.from_pretrained(setup.model)
    rows = [continue_prompt(model, tokenizer, prompt) for prompt in PROMPTS]
    setup.prompts.write_text(json.dumps(rows, indent=1, ensure_ascii=False), encoding="utf-8")
    return {"prompts": len(rows), "turns": sum(len(row["turns"]) for row in rows)}
