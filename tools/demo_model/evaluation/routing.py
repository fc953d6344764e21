"""How evenly the router uses the experts, and what the indexer keeps."""

import torch

from ..architecture import CONFIG
from ..blocks import causal_mask, index_scores, rope_tables
from ..network import AttentionRecord, Network
from .setup import Result, Setup

CONTEXT = 1024
CONTEXTS = 4
FIRST_QUERY = 512


@torch.no_grad()
def skew(setup: Setup) -> Result:
    """Share of tokens that the most used quarter of the experts gets, overall and within a document."""
    network = setup.network()
    layers = [layer for layer in CONFIG.layers if not CONFIG.is_dense(layer)]
    experts, quarter = CONFIG.n_routed_experts, CONFIG.n_routed_experts // 4
    counts = {layer: torch.zeros(experts) for layer in layers}
    by_kind = {kind: {layer: torch.zeros(experts) for layer in layers} for kind in ("text", "tools", "chat")}
    within: dict[int, list[float]] = {layer: [] for layer in layers}

    def top_share(count: torch.Tensor) -> float:
        return (count.sort(descending=True).values[:quarter].sum() / count.sum()).item()

    for document in setup.documents:
        hidden = network.hidden(document[None])
        network.mtp(hidden[:, :-1], document[None, 1:])
        for layer, chosen in network.chosen.items():
            count = torch.bincount(chosen.flatten(), minlength=experts).float()
            counts[layer] += count
            by_kind[setup.kind(document)][layer] += count
            within[layer].append(top_share(count))
    distance = {}
    for layer in layers:
        text, tools = (by_kind[kind][layer] / by_kind[kind][layer].sum() for kind in ("text", "tools"))
        distance[str(layer)] = 0.5 * (text - tools).abs().sum().item()
    return {
        "top25": {str(layer): top_share(counts[layer]) for layer in layers},
        "top25_within_document": {str(layer): sum(within[layer]) / len(within[layer]) for layer in layers},
        "text_vs_tools_total_variation": distance,
        "min_over_mean": {
            str(layer): (counts[layer].min() / counts[layer].mean()).item() for layer in layers
        },
    }


def kept_mass(network: Network, records: list[AttentionRecord]) -> dict[int, tuple[float, float, float]]:
    """Share of the attention mass (mean over heads) that the indexer's keys, the most recent keys and the
    best keys hold, by layer."""
    cos, sin = rope_tables(CONFIG, CONTEXT, torch.float32)
    mask = causal_mask(CONTEXT, torch.float32)
    top_k = CONFIG.index_topk
    scores = torch.empty(0)
    out = {}
    for record in records:
        logits = record.queries @ record.keys.mT * CONFIG.head_dim**-0.5 + mask
        shares = logits.softmax(-1).mean(1)[0]
        if CONFIG.has_indexer(record.layer):
            scores = index_scores(network.parameters, record.layer, record.normed, record.latent, cos, sin)[0]
            scores = scores + mask
        late = shares[FIRST_QUERY:]
        chosen = late.gather(-1, scores.topk(top_k, -1).indices[FIRST_QUERY:]).sum(-1)
        recent = torch.stack([shares[t, t - top_k + 1 : t + 1].sum() for t in range(FIRST_QUERY, CONTEXT)])
        best = late.topk(top_k, -1).values.sum(-1)
        out[record.layer] = (chosen.mean().item(), recent.mean().item(), best.mean().item())
    return out


@torch.no_grad()
def indexer(setup: Setup) -> Result:
    """Attention mass kept by the indexer, for late queries of packed contexts."""
    network = setup.network()
    sums: dict[int, list[float]] = {}
    for number in range(CONTEXTS):
        ids = setup.joined[number * CONTEXT : (number + 1) * CONTEXT][None]
        records: list[AttentionRecord] = []
        network.hidden(ids, sparse=False, records=records)
        for layer, values in kept_mass(network, records).items():
            total = sums.setdefault(layer, [0.0, 0.0, 0.0])
            sums[layer] = [a + b / CONTEXTS for a, b in zip(total, values, strict=True)]
    names = ("indexer", "recent", "oracle")
    return {str(layer): dict(zip(names, values, strict=True)) for layer, values in sums.items()}
