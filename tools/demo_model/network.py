"""The model for evaluation: decoder, MTP layer, and the choices they make."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from .architecture import ModelConfig, Parameters
from .blocks import (
    attention_weights,
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
from .experts import RoutedExperts


@dataclass
class AttentionRecord:
    """What the attention of one layer saw."""

    layer: int
    normed: torch.Tensor  # [B, L, hidden]
    latent: torch.Tensor  # [B, L, q_rank]
    queries: torch.Tensor  # [B, H, L, head_dim]
    keys: torch.Tensor  # [B, H, L, head_dim]


@dataclass
class Network:
    """Parameters with the forward pass. `bias` holds the router correction bias by layer; `chosen` the
    experts [tokens, chosen] of the latest pass by layer."""

    config: ModelConfig
    parameters: Parameters
    bias: dict[int, torch.Tensor]
    chosen: dict[int, torch.Tensor] = field(default_factory=dict)

    def attention(
        self,
        x: torch.Tensor,
        layer: int,
        sparse: bool,
        kept: torch.Tensor | None,
        records: list[AttentionRecord] | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Residual stream after the attention block, and the keys [B, L, top_k] kept by the indexer, for the
        layers that share them."""
        length = x.shape[1]
        cos, sin = rope_tables(self.config, length, x.dtype)
        weights = attention_weights(self.parameters, layer)
        normed = rms_norm(x, weights.norm)
        latent = query_latent(normed, weights)
        q = queries(latent, cos, sin, weights)
        k, v = keys_values(normed, cos, sin, weights)
        scale = self.config.head_dim**-0.5
        if sparse:
            visible = torch.ones(length, length, dtype=torch.bool).tril()
            if self.config.has_indexer(layer):
                scores = index_scores(self.parameters, layer, normed, latent, cos, sin)
                scores = scores.masked_fill(~visible, float("-inf"))
                kept = scores.topk(min(self.config.index_topk, length), -1).indices
            mask = torch.zeros(x.shape[0], length, length, dtype=torch.bool).scatter(-1, kept, True)
            mask = (mask & visible)[:, None]
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        else:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        if records is not None:
            records.append(AttentionRecord(layer, normed, latent, q, k))
        return x + F.linear(merge_heads(out), weights.o), kept

    def feed_forward(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        """Residual stream after the dense or expert block."""
        prefix = f"model.layers.{layer}."
        normed = rms_norm(x, self.parameters[prefix + "post_attention_layernorm.weight"])
        if self.config.is_dense(layer):
            return x + swiglu(normed, *self.matrices(f"{prefix}mlp."))
        flat = normed.reshape(-1, normed.shape[-1])
        router = self.parameters[prefix + "mlp.gate.weight"].float()
        chosen, weights = route(F.linear(flat.float(), router).sigmoid(), self.bias[layer])
        self.chosen[layer] = chosen
        routed = RoutedExperts.apply(
            flat,
            chosen,
            weights,
            self.parameters[prefix + "mlp.experts.gate_up"],
            self.parameters[prefix + "mlp.experts.down"],
        )
        shared = swiglu(normed, *self.matrices(f"{prefix}mlp.shared_experts."))
        return x + routed.view(x.shape) + shared

    def matrices(self, prefix: str) -> list[torch.Tensor]:
        """Gate, up and down matrix of a feed-forward block."""
        return [self.parameters[f"{prefix}{name}_proj.weight"] for name in ("gate", "up", "down")]

    def hidden(
        self,
        ids: torch.Tensor,
        sparse: bool = True,
        records: list[AttentionRecord] | None = None,
    ) -> torch.Tensor:
        """Hidden states [B, L, hidden] after the final norm. `sparse` applies the indexer's choice."""
        x = F.embedding(ids, self.parameters["model.embed_tokens.weight"])
        kept = None
        for layer in range(self.config.num_hidden_layers):
            x, kept = self.attention(x, layer, sparse, kept, records)
            x = self.feed_forward(x, layer)
        return rms_norm(x, self.parameters["model.norm.weight"])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [B, L, vocabulary] from hidden states after a norm."""
        return F.linear(hidden, self.parameters["lm_head.weight"])

    def mtp_input(self, hidden: torch.Tensor, next_ids: torch.Tensor) -> torch.Tensor:
        """Input of the MTP layer: the next token's embedding and the hidden state, both normed."""
        prefix = f"model.layers.{self.config.mtp_layer}."
        embedded = F.embedding(next_ids, self.parameters["model.embed_tokens.weight"])
        halves = [
            rms_norm(embedded, self.parameters[prefix + "enorm.weight"]),
            rms_norm(hidden, self.parameters[prefix + "hnorm.weight"]),
        ]
        return F.linear(torch.cat(halves, -1), self.parameters[prefix + "eh_proj.weight"])

    def mtp(self, hidden: torch.Tensor, next_ids: torch.Tensor, sparse: bool = True) -> torch.Tensor:
        """Raw output of the MTP layer for hidden states after the final norm and the tokens after them."""
        layer = self.config.mtp_layer
        x, _ = self.attention(self.mtp_input(hidden, next_ids), layer, sparse, None, None)
        return self.feed_forward(x, layer)

    def mtp_logits(self, raw: torch.Tensor) -> torch.Tensor:
        """Logits of the raw output of the MTP layer."""
        norm = self.parameters[f"model.layers.{self.config.mtp_layer}.shared_head.norm.weight"]
        return self.logits(rms_norm(raw, norm))
