"""The forward pass of training: the same blocks as `demo_model.network`, compiled, with all losses.

Attention is dense throughout: the indexer learns from it, and its choice is never applied.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from ..architecture import CONFIG, Parameters
from ..blocks import (
    AttentionWeights,
    attention_weights,
    causal_mask,
    draft_attention,
    index_scores,
    keys_values,
    merge_heads,
    queries,
    query_latent,
    rms_norm,
    rope_tables,
    route,
    swiglu,
)
from ..experts import RoutedExperts
from .packing import EXTRA
from .schedule import Losses

BALANCE_WEIGHT = 1e-4
SECOND_DRAFT_SHARE = 0.5
LOWEST_LOG_SHARE = -40
Rows = tuple[torch.Tensor, torch.Tensor]


def attention(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    mask: torch.Tensor,
    weights: AttentionWeights,
    earlier: list[Rows],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Rows]:
    """Residual stream after attention, the normed input, the query latent, and the keys and values.
    `earlier` holds those of the draft steps before."""
    normed = rms_norm(x, weights.norm)
    latent = query_latent(normed, weights)
    q = queries(latent, cos, sin, weights) * CONFIG.head_dim**-0.5
    k, v = keys_values(normed, cos, sin, weights)
    out = draft_attention(q, k, v, earlier, mask)
    return x + F.linear(merge_heads(out), weights.o), normed, latent, (k, v)


def router_and_shared(
    x: torch.Tensor, norm: torch.Tensor, router: torch.Tensor, shared: list[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normed input, router scores [B, L, experts], and the residual stream with the shared expert added."""
    normed = rms_norm(x, norm)
    scores = F.linear(normed.float(), router.float()).sigmoid()
    return normed, scores, x + swiglu(normed, *shared)


def dense_block(x: torch.Tensor, norm: torch.Tensor, matrices: list[torch.Tensor]) -> torch.Tensor:
    """Residual stream after a dense feed-forward block."""
    return x + swiglu(rms_norm(x, norm), *matrices)


def mtp_input(
    embedded: torch.Tensor, hidden: torch.Tensor, enorm: torch.Tensor, hnorm: torch.Tensor, w: torch.Tensor
) -> torch.Tensor:
    """Input of the MTP layer."""
    return F.linear(torch.cat([rms_norm(embedded, enorm), rms_norm(hidden, hnorm)], -1), w)


def head_loss(
    x: torch.Tensor, norm: torch.Tensor, head: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean cross entropy, and the normed hidden states."""
    normed = rms_norm(x, norm)
    logits = F.linear(normed, head).float()
    right = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return (torch.logsumexp(logits, -1) - right).mean(), normed


@dataclass
class Measured:
    """Losses of one micro-batch; None where it has none."""

    total: torch.Tensor
    model: torch.Tensor
    first_draft: torch.Tensor | None = None
    second_draft: torch.Tensor | None = None
    indexer: torch.Tensor | None = None

    def parts(self) -> tuple[torch.Tensor | None, ...]:
        """Everything but the total."""
        return self.model, self.first_draft, self.second_draft, self.indexer


class TrainingNetwork:
    """Parameters with the loss of a micro-batch, computed in their type.

    `expert_counts` holds, by layer, how many tokens each expert got in the latest pass.
    """

    def __init__(self, parameters: Parameters, bias: dict[int, torch.Tensor], compiled: bool = True) -> None:
        self.parameters = parameters
        self.bias = bias
        self.expert_counts: dict[int, torch.Tensor] = {}
        self.balance: list[torch.Tensor] = []
        self.tables: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        self.draft_rows: list[Rows] = []

        def fast(function: Callable[..., Any]) -> Callable[..., Any]:
            return torch.compile(function, dynamic=False) if compiled else function

        self.attention = fast(attention)
        self.router_and_shared = fast(router_and_shared)
        self.dense_block = fast(dense_block)
        self.mtp_input = fast(mtp_input)
        self.head_loss = fast(head_loss)

    def position_tables(self, length: int, first: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Cosine, sine and causal mask for positions from `first` on."""
        key = length, first
        if key not in self.tables:
            dtype = self.parameters["model.norm.weight"].dtype
            cos, sin = rope_tables(CONFIG, length, dtype, first)
            self.tables[key] = cos, sin, causal_mask(length, dtype)
        return self.tables[key]

    def block(
        self,
        x: torch.Tensor,
        layer: int,
        collected: list[tuple[int, torch.Tensor, torch.Tensor]] | None,
        draft: int = 0,
    ) -> torch.Tensor:
        """One layer. `draft` counts the draft steps before this one; the rows of a later step stand one
        position further and see the first step's rows."""
        cos, sin, mask = self.position_tables(x.shape[1], draft)
        weights = attention_weights(self.parameters, layer)
        attend = attention if draft else self.attention
        x, normed, latent, rows = attend(x, cos, sin, mask, weights, self.draft_rows[:draft])
        if layer == CONFIG.mtp_layer:
            self.draft_rows = [*self.draft_rows[:draft], rows]
        if collected is not None:
            collected.append((layer, normed.detach(), latent.detach()))
        norm = self.parameters[f"model.layers.{layer}.post_attention_layernorm.weight"]
        if CONFIG.is_dense(layer):
            return self.dense_block(x, norm, self.matrices(layer, ""))
        return self.expert_block(x, layer, norm)

    def matrices(self, layer: int, part: str) -> list[torch.Tensor]:
        """Gate, up and down matrix of a feed-forward block."""
        prefix = f"model.layers.{layer}.mlp.{part}"
        return [self.parameters[f"{prefix}{name}_proj.weight"] for name in ("gate", "up", "down")]

    def expert_block(self, x: torch.Tensor, layer: int, norm: torch.Tensor) -> torch.Tensor:
        """Residual stream after routed and shared experts; notes the load of the experts."""
        rows, length, hidden = x.shape
        prefix = f"model.layers.{layer}.mlp."
        router, shared = self.parameters[prefix + "gate.weight"], self.matrices(layer, "shared_experts.")
        normed, scores, x = self.router_and_shared(x, norm, router, shared)
        experts, per_token = CONFIG.n_routed_experts, CONFIG.num_experts_per_tok
        chosen, weights = route(scores.view(-1, experts), self.bias[layer])
        gate_up, down = self.parameters[prefix + "experts.gate_up"], self.parameters[prefix + "experts.down"]
        routed = RoutedExperts.apply(normed.reshape(-1, hidden), chosen, weights, gate_up, down)
        used = torch.zeros(rows, experts)
        used.scatter_add_(1, chosen.view(rows, -1), torch.ones(rows, length * per_token))
        # Sequence balance: share of tokens of an expert times its mean score, 1 when even.
        share = (scores / scores.sum(-1, keepdim=True)).mean(1)
        self.balance.append((used * (experts / (per_token * length)) * share).sum(1).mean())
        self.expert_counts[layer] = used.sum(0)
        return x + routed.view(rows, length, hidden)

    def loss(self, ids: torch.Tensor, wanted: Losses) -> Measured:
        """Losses of rows of ids [B, L + 3]."""
        length = ids.shape[1] - EXTRA
        self.balance, self.expert_counts, self.draft_rows = [], {}, []
        collected: list[tuple[int, torch.Tensor, torch.Tensor]] | None = [] if wanted.indexer else None
        embedding = self.parameters["model.embed_tokens.weight"]
        head = self.parameters["lm_head.weight"]
        x = F.embedding(ids[:, :length], embedding)
        for layer in range(CONFIG.num_hidden_layers):
            x = self.block(x, layer, collected)
        norm = self.parameters["model.norm.weight"]
        model_loss, hidden = self.head_loss(x, norm, head, ids[:, 1 : length + 1])
        out = Measured(total=model_loss, model=model_loss)
        if wanted.mtp:
            raw, out.first_draft = self.draft_loss(ids, hidden, 0, collected)
            out.total = out.total + wanted.mtp_weight * out.first_draft
            if wanted.second_draft:
                _, out.second_draft = self.draft_loss(ids, raw, 1, None)
                out.total = out.total + SECOND_DRAFT_SHARE * wanted.mtp_weight * out.second_draft
        out.total = out.total + BALANCE_WEIGHT * sum(self.balance)
        if collected is not None:
            out.indexer = self.indexer_loss(collected)
            out.total = out.total + out.indexer
        return out

    def draft_loss(
        self,
        ids: torch.Tensor,
        hidden: torch.Tensor,
        step: int,
        collected: list[tuple[int, torch.Tensor, torch.Tensor]] | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Raw output and loss of one draft step."""
        prefix = f"model.layers.{CONFIG.mtp_layer}."
        length = ids.shape[1] - EXTRA
        known = ids[:, 1 + step : length + 1 + step]
        targets = ids[:, 2 + step : length + 2 + step]
        embedded = F.embedding(known, self.parameters["model.embed_tokens.weight"])
        names = ("enorm", "hnorm", "eh_proj")
        x = self.mtp_input(embedded, hidden, *(self.parameters[f"{prefix}{n}.weight"] for n in names))
        raw = self.block(x, CONFIG.mtp_layer, collected, step)
        norm = self.parameters[prefix + "shared_head.norm.weight"]
        return raw, self.head_loss(raw, norm, self.parameters["lm_head.weight"], targets)[0]

    def indexer_loss(self, collected: list[tuple[int, torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """Cross entropy between the attention (mean over heads and over the layers that share the keys) and
        the softmax of the index scores, on the first row, with detached inputs."""
        cos, sin, mask = self.position_tables(collected[0][1].shape[1], 0)
        mask = mask.float()
        targets: dict[int, tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]] = {}
        full = 0
        for layer, normed, latent in collected:
            normed, latent = normed[:1], latent[:1]
            with torch.no_grad():
                weights = attention_weights(self.parameters, layer)
                q = queries(latent, cos, sin, weights)
                k, _ = keys_values(normed, cos, sin, weights)
                shares = ((q @ k.mT).float() * CONFIG.head_dim**-0.5 + mask).softmax(-1).mean(1)
            if CONFIG.has_indexer(layer):
                full = layer
                targets[full] = ([shares], normed, latent)
            else:
                targets[full][0].append(shares)
        total = torch.zeros(())
        for layer, (layers, normed, latent) in targets.items():
            scores = index_scores(self.parameters, layer, normed, latent, cos, sin) + mask
            target = torch.stack(layers).mean(0)
            total = total - (target * scores.log_softmax(-1).clamp_min(LOWEST_LOG_SHARE)).sum(-1).mean()
        return total / len(targets)
