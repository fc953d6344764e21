"""The prompts of every fixture: random ids of fixed lengths, the same for every seed."""

import numpy as np
import torch

LENGTHS = (1, 7, 33, 64)
FIRST_SEED = 7000


def make_prompts(limit: int) -> list[list[int]]:
    """One prompt per length, ids below `limit`."""
    prompts = []
    for length in LENGTHS:
        state = np.random.RandomState(FIRST_SEED + length)
        prompts.append([int(index) for index in state.randint(0, limit, size=length)])
    return prompts


def negative_log_likelihood(logits: torch.Tensor, ids: list[int]) -> torch.Tensor:
    """-log p(next id) of every position but the last [tokens - 1]."""
    if len(ids) < 2:
        return torch.zeros(0)
    log_probability = torch.log_softmax(logits.double(), -1)
    targets = torch.tensor(ids[1:])
    return -log_probability[:-1].gather(1, targets[:, None])[:, 0].float()
