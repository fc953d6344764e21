"""What was selected and by how much: router choices, indexer keys, and the gap between the last
selected and the first rejected candidate."""

import torch

from .capture import Capture, RouterRecord

INFINITE = float("inf")


def router_summary(record: RouterRecord) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Experts [tokens, chosen] ascending, their weights, and the selection margin [tokens].

    The selection is recomputed in float64; it must agree unless it sits on a near tie.
    """
    count = record.experts.shape[-1]
    order = record.experts.argsort(-1)
    experts = record.experts.gather(-1, order)
    weights = record.weights.gather(-1, order)
    margin = torch.full((record.logits.shape[0],), INFINITE, dtype=torch.float64)
    if record.score is None:
        return experts.to(torch.int32), weights.float(), margin.float()
    scores = record.score(record.logits.double())
    if record.bias is not None:
        scores = scores + record.bias.double()
    if record.groups > 1:
        scores, margin = keep_best_groups(scores, margin, record)
    ranked = scores.sort(-1, descending=True)[0]
    if count < scores.shape[1]:
        gap = ranked[:, count - 1] - ranked[:, count]
        rejected_group = ranked[:, count] < -1e8
        margin = torch.minimum(margin, torch.where(rejected_group, torch.full_like(gap, INFINITE), gap))
    recomputed = scores.topk(count, -1)[1].sort(-1)[0]
    if not torch.equal(recomputed, experts.long()):
        if float(margin.min()) >= 1e-5:
            raise AssertionError("router capture disagrees with the recomputed selection")
        margin = torch.zeros_like(margin)
    return experts.to(torch.int32), weights.float(), margin.float()


def keep_best_groups(
    scores: torch.Tensor, margin: torch.Tensor, record: RouterRecord
) -> tuple[torch.Tensor, torch.Tensor]:
    """Group-limited selection: a group scores the sum of its two best experts, losing groups are
    pushed to the bottom."""
    groups = scores.view(scores.shape[0], record.groups, -1).topk(2, -1)[0].sum(-1)
    ranked, order = groups.sort(-1, descending=True)
    kept = record.chosen_groups
    margin = torch.minimum(margin, ranked[:, kept - 1] - ranked[:, kept])
    keep = torch.zeros_like(groups).scatter_(1, order[:, :kept], 1).bool()
    lost = ~keep.repeat_interleave(scores.shape[1] // record.groups, 1)
    return scores.masked_fill(lost, -1e9), margin


def indexer_summary(
    keys: torch.Tensor, scores: torch.Tensor, top_k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal part of the selected keys [queries, top_k] (ascending, -1 padded), and the margin at
    the cut for each query."""
    queries, positions = scores.shape
    chosen = torch.full((queries, min(top_k, positions)), -1, dtype=torch.int32)
    margin = torch.full((queries,), INFINITE)
    offset = positions - queries
    for query in range(queries):
        visible = offset + query + 1
        causal = sorted(int(key) for key in keys[query].tolist() if key < visible)
        chosen[query, : len(causal)] = torch.tensor(causal, dtype=torch.int32)
        if visible > top_k:
            ranked = scores[query, :visible].double().sort(descending=True)[0]
            margin[query] = float(ranked[top_k - 1] - ranked[top_k])
    return chosen, margin


def smallest_margins(capture: Capture, top_k: int | None) -> tuple[float, float]:
    """The smallest router and indexer margins of the captured pass."""
    router = indexer = INFINITE
    for record in capture.routers.values():
        router = min(router, float(router_summary(record)[2].min()))
    for index, keys in capture.keys.items():
        margin = indexer_summary(keys, capture.scores[index], top_k)[1]
        indexer = min(indexer, float(margin.min()))
    return router, indexer
