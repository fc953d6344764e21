"""Reference arrays of one checkpoint: logits, hidden states, choices and greedy continuations.

Raises `SeedRejectedError` when anything sits so close to a tie that two correct implementations may
differ.
"""

import math
from typing import Any

import torch

from .capture import Capture
from .errors import SeedRejectedError
from .families import BLOCK_PROMPT, Family
from .greedy import greedy_cached, greedy_uncached
from .models import expert_count, forward
from .mtp_reference import DENSE_TOP_K
from .prompts import negative_log_likelihood
from .selection import indexer_summary, router_summary

# Smallest accepted gaps between the last selected and the first rejected candidate.
THRESHOLDS = {"router": 4e-5, "indexer": 5e-5, "greedy": 2e-3}
FEWEST_DISTINCT_IDS = 6
# Stands for "not causal" in the stored index scores.
MASKED = -1e30


class Recorder:
    """Collects the references of one model over its prompts."""

    def __init__(self, family: Family, model: Any, stop_ids: set[int]) -> None:
        self.family = family
        self.model = model
        self.stop_ids = stop_ids
        self.top_k = getattr(model.config, "index_topk", None)
        self.arrays: dict[str, torch.Tensor] = {}
        self.entries: list[dict[str, Any]] = []
        self.worst = dict.fromkeys(THRESHOLDS, math.inf)
        self.used: dict[int, set[int]] = {}
        self.cached_difference = 0.0

    def record(self, prompts: list[list[int]]) -> None:
        """References of all prompts; every expert must have been selected somewhere."""
        with Capture(self.model) as capture:
            for number, ids in enumerate(prompts):
                capture.clear()
                logits = forward(self.model, ids)
                entry = self.store_logits(number, ids, logits)
                self.store_layers(number, ids, capture)
                self.reject_near_ties("")
                entry["greedy"] = self.greedy(number, ids, capture)
                self.entries.append(entry)
        if any(len(used) < expert_count(self.model) for used in self.used.values()):
            raise SeedRejectedError("an expert is never selected")

    def store_logits(self, number: int, ids: list[int], logits: torch.Tensor) -> dict[str, Any]:
        """Ids, logits and likelihoods of a prompt."""
        prefix = f"p{number}."
        likelihood = negative_log_likelihood(logits, ids)
        self.arrays[prefix + "ids"] = torch.tensor(ids, dtype=torch.int32)
        self.arrays[prefix + "logits"] = logits.clone()
        self.arrays[prefix + "nll"] = likelihood
        return {
            "ids": ids,
            "nll_sum": float(likelihood.double().sum()),
            "argmax": [int(index) for index in logits.argmax(-1)],
        }

    def store_layers(self, number: int, ids: list[int], capture: Capture) -> None:
        """Choices of every layer, and for two of the prompts the hidden states."""
        prefix = f"p{number}."
        for layer, _ in capture.layers:
            if layer in capture.routers:
                self.store_router(f"{prefix}router.{layer}.", layer, capture)
            if layer in capture.keys:
                with_scores = number == self.family.hidden_prompt
                self.store_indexer(f"{prefix}indexer.{layer}.", layer, capture, with_scores)
            if number == self.family.hidden_prompt:
                self.arrays[f"{prefix}hidden.{layer}"] = capture.outputs[layer].clone()
            if number == BLOCK_PROMPT:
                for kind in ("attn_out", "mlp_out"):
                    if (kind, layer) in capture.blocks:
                        value = capture.blocks[kind, layer].reshape(len(ids), -1).clone()
                        self.arrays[f"{prefix}{kind}.{layer}"] = value
        if number == self.family.hidden_prompt:
            with torch.no_grad():
                out = self.model(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
            embedded = out.hidden_states[0][0].clone().reshape(len(ids), -1)
            self.arrays[prefix + "hidden.embed"] = embedded
            self.arrays[prefix + "hidden.final"] = out.hidden_states[-1][0].clone()

    def store_router(self, prefix: str, layer: int, capture: Capture) -> None:
        """Selected experts, their weights and the margin."""
        experts, weights, margin = router_summary(capture.routers[layer])
        self.arrays[prefix + "experts"] = experts
        self.arrays[prefix + "weights"] = weights
        self.arrays[prefix + "margin"] = margin
        self.worst["router"] = min(self.worst["router"], float(margin.min()))
        self.used.setdefault(layer, set()).update(experts.flatten().tolist())

    def store_indexer(self, prefix: str, layer: int, capture: Capture, with_scores: bool) -> None:
        """Selected keys and the margin, unless nothing can be pruned."""
        keys, margin = indexer_summary(capture.keys[layer], capture.scores[layer], self.top_k)
        if self.top_k < DENSE_TOP_K:
            self.arrays[prefix + "keys"] = keys
            self.arrays[prefix + "margin"] = margin
            if with_scores:
                scores = capture.scores[layer].clone()
                masked = torch.full_like(scores, MASKED)
                self.arrays[prefix + "scores"] = torch.where(scores < MASKED, masked, scores)
        self.worst["indexer"] = min(self.worst["indexer"], float(margin.min()))

    def greedy(self, number: int, ids: list[int], capture: Capture) -> dict[str, Any]:
        """Greedy continuation; cached and uncached decoding must agree."""
        out = greedy_uncached(self.model, ids, capture)
        self.worst["greedy"] = min(self.worst["greedy"], *out.margins)
        for router, indexer in out.selection_margins:
            self.worst["router"] = min(self.worst["router"], router)
            self.worst["indexer"] = min(self.worst["indexer"], indexer)
        self.reject_near_ties(f" (greedy, prompt {number})")
        if self.stop_ids & set(out.ids):
            raise SeedRejectedError("greedy hits an end-of-text id")
        if len(set(out.ids)) < FEWEST_DISTINCT_IDS:
            raise SeedRejectedError("greedy continuation is degenerate")
        cached_ids, cached_logits = greedy_cached(self.model, ids)
        if cached_ids != out.ids:
            raise SeedRejectedError("greedy with a cache differs")
        difference = (cached_logits.float() - torch.stack(out.logits)).abs().max()
        self.cached_difference = max(self.cached_difference, float(difference))
        return {**out.as_json(), "top2": out.top2}

    def reject_near_ties(self, where: str) -> None:
        """Raises when any margin seen so far is too small."""
        for kind, threshold in THRESHOLDS.items():
            if self.worst[kind] < threshold:
                raise SeedRejectedError(f"{kind} margin {self.worst[kind]:.1e}{where}")

    def smallest_margins(self) -> dict[str, float | None]:
        """Smallest margin of every kind, None where nothing is selected that way."""
        return {
            kind: None if math.isinf(value) else float(f"{value:.3e}") for kind, value in self.worst.items()
        }
