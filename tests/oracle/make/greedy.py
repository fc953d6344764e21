"""Greedy continuations, with and without a key/value cache."""

from dataclasses import dataclass, field

import torch
from transformers import GenerationConfig

from .capture import Capture
from .models import forward
from .selection import smallest_margins

TOKENS = 24


@dataclass
class Continuation:
    """A greedy continuation and how close every step was."""

    ids: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    top2: list[list[float]] = field(default_factory=list)
    """[second id, best logit, second logit] of every step."""
    logits: list[torch.Tensor] = field(default_factory=list)
    selection_margins: list[tuple[float, float]] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        """Ids and margins, rounded for storage."""
        return {"ids": self.ids, "top2_margin": [round(margin, 6) for margin in self.margins]}


def greedy_uncached(
    model: torch.nn.Module, prompt: list[int], capture: Capture | None = None
) -> Continuation:
    """Recomputes the whole sequence for every token."""
    top_k = getattr(model.config, "index_topk", None)
    out = Continuation()
    for _ in range(TOKENS):
        if capture:
            capture.clear()
        logits = forward(model, prompt + out.ids)[-1]
        if capture:
            out.selection_margins.append(smallest_margins(capture, top_k))
        value, index = logits.topk(2)
        out.ids.append(int(index[0]))
        out.margins.append(float(value[0] - value[1]))
        out.top2.append([int(index[1]), round(float(value[0]), 5), round(float(value[1]), 5)])
        out.logits.append(logits)
    return out


def greedy_cached(model: torch.nn.Module, prompt: list[int]) -> tuple[list[int], torch.Tensor]:
    """The library's own generation: ids and logits [tokens, vocabulary]."""
    config = GenerationConfig(
        do_sample=False,
        max_new_tokens=TOKENS,
        eos_token_id=None,
        pad_token_id=0,
        bos_token_id=None,
        return_dict_in_generate=True,
        output_logits=True,
        use_cache=True,
    )
    model.generation_config = config
    with torch.no_grad():
        out = model.generate(
            torch.tensor([prompt]),
            generation_config=config,
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        )
    return out.sequences[0, len(prompt) :].tolist(), torch.stack([row[0] for row in out.logits])
