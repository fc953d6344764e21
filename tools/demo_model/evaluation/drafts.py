"""Acceptance of the drafts of the MTP layer under greedy decoding of the reference continuations."""

import torch
import torch.nn.functional as F

from ..architecture import CONFIG
from ..blocks import (
    attention_weights,
    causal_mask,
    draft_attention,
    keys_values,
    merge_heads,
    queries,
    query_latent,
    rms_norm,
    rope_tables,
)
from ..network import Network
from .setup import Result, Setup

DRAFTS = 3


@torch.no_grad()
def draft_predictions(network: Network, ids: torch.Tensor) -> list[torch.Tensor]:
    """Drafts at every position of a sequence [1, L], given that the earlier drafts were right.

    Entry d, position t is the draft for token t + 2 + d made from the prefix that ends at t, with token
    t + 1 known, as an engine with one cache row per MTP position computes it.
    """
    layer = CONFIG.mtp_layer
    weights = attention_weights(network.parameters, layer)
    length = ids.shape[1]
    previous = network.hidden(ids)[:, : length - 1]
    mask = causal_mask(length, torch.float32)
    predictions, rows = [], []
    for step in range(DRAFTS):
        count = length - 1 - step  # positions whose token t + 1 + step is known
        x = network.mtp_input(previous[:, :count], ids[:, 1 + step :])
        cos, sin = rope_tables(CONFIG, count, x.dtype, step)
        normed = rms_norm(x, weights.norm)
        q = queries(query_latent(normed, weights), cos, sin, weights) * CONFIG.head_dim**-0.5
        k, v = keys_values(normed, cos, sin, weights)
        earlier = [(keys[:, :, :count], values[:, :, :count]) for keys, values in rows]
        out = draft_attention(q, k, v, earlier, mask[:count, :count])
        rows.append((k, v))
        previous = network.feed_forward(x + F.linear(merge_heads(out), weights.o), layer)
        predictions.append(network.mtp_logits(previous).argmax(-1)[0])
    return predictions


def right_drafts(network: Network, ids: torch.Tensor) -> list[torch.Tensor]:
    """For every draft step, whether the draft at each position is the token that follows."""
    right = []
    for step, predicted in enumerate(draft_predictions(network, ids)):
        targets = ids[0, 2 + step :]
        right.append(predicted[: len(targets)] == targets)
    return right


class Acceptance:
    """Counts over all continuations."""

    def __init__(self) -> None:
        self.hits = [0] * DRAFTS
        self.tries = [0] * DRAFTS
        self.tokens = [0] * (DRAFTS + 1)
        self.steps = [0] * (DRAFTS + 1)

    def add(self, right: list[torch.Tensor], prompt: int, length: int) -> None:
        """Counts one continuation of `prompt` given tokens up to `length`."""
        for position in range(prompt - 1, length - 2):
            for step in range(DRAFTS):
                if position + 2 + step >= length:
                    break
                self.tries[step] += 1
                if not right[step][position]:
                    break
                self.hits[step] += 1
        for drafts in range(1, DRAFTS + 1):
            self.simulate(right, prompt, length, drafts)

    def simulate(self, right: list[torch.Tensor], prompt: int, length: int, drafts: int) -> None:
        """Decoding with `drafts` drafts a step; the first token comes from the prompt."""
        position, steps, tokens = prompt, 1, 1
        while position < length - 1:
            accepted = 0
            while accepted < drafts and position + 1 + accepted < length and right[accepted][position - 1]:
                accepted += 1
            emitted = min(accepted + 1, length - 1 - position)
            position += emitted
            steps += 1
            tokens += emitted
        self.tokens[drafts] += tokens
        self.steps[drafts] += steps

    def result(self) -> Result:
        """Acceptance of each draft given the ones before it, and tokens a verification step."""
        return {
            "conditional_acceptance": [
                hits / max(1, tries) for hits, tries in zip(self.hits, self.tries, strict=True)
            ],
            "positions": self.tries,
            "tokens_per_step": {
                str(drafts): self.tokens[drafts] / self.steps[drafts] for drafts in range(1, DRAFTS + 1)
            },
        }


def acceptance(setup: Setup, network: Network) -> Result:
    """Acceptance over all reference continuations of at least three tokens."""
    counts = Acceptance()
    for prompt, greedy in setup.references():
        if len(greedy) >= DRAFTS:
            ids = torch.tensor([prompt + greedy])
            counts.add(right_drafts(network, ids), len(prompt), ids.shape[1])
    return counts.result()


def drafts(setup: Setup) -> Result:
    """Acceptance with the stored weights."""
    return acceptance(setup, setup.network())
