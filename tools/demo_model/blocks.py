"""The arithmetic of the blocks: norm, rope, latent attention, indexer scores, router.

Every function is plain tensor code that `torch.compile` accepts. Shapes use B rows, L positions, H heads.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F

from .architecture import CONFIG, ModelConfig, Parameters

# transformers builds the norms of the latents with this eps, whatever rms_norm_eps is.
LATENT_EPS = 1e-6
INDEX_NORM_EPS = 1e-6


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = CONFIG.rms_norm_eps) -> torch.Tensor:
    """x / rms(x) * weight over the last dimension, the mean in float32."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def rope_tables(
    config: ModelConfig, length: int, dtype: torch.dtype, first: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine [L, rope_dim / 2] of the positions from `first` on."""
    dim = config.qk_rope_head_dim
    inverse = 1.0 / (config.rope_theta ** (torch.arange(0, dim, 2).float() / dim))
    angles = torch.arange(first, first + length).float()[:, None] * inverse
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates adjacent pairs of x [B, L, H, dim]; first halves come out first, as in transformers."""
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([even * cos - odd * sin, odd * cos + even * sin], -1)


class AttentionWeights(NamedTuple):
    """Weights of one latent-attention block."""

    norm: torch.Tensor
    q_a: torch.Tensor
    q_a_norm: torch.Tensor
    q_b: torch.Tensor
    kv_a: torch.Tensor
    kv_a_norm: torch.Tensor
    kv_b: torch.Tensor
    o: torch.Tensor


def attention_weights(parameters: Parameters, layer: int) -> AttentionWeights:
    """The weights of a layer's attention block, with the norm before it."""
    prefix = f"model.layers.{layer}."
    names = (
        "q_a_proj",
        "q_a_layernorm",
        "q_b_proj",
        "kv_a_proj_with_mqa",
        "kv_a_layernorm",
        "kv_b_proj",
        "o_proj",
    )
    return AttentionWeights(
        parameters[prefix + "input_layernorm.weight"],
        *(parameters[f"{prefix}self_attn.{name}.weight"] for name in names),
    )


def query_latent(normed: torch.Tensor, weights: AttentionWeights) -> torch.Tensor:
    """The normed query latent [B, L, q_rank], which the indexer uses too."""
    return rms_norm(F.linear(normed, weights.q_a), weights.q_a_norm, LATENT_EPS)


def queries(
    latent: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, weights: AttentionWeights
) -> torch.Tensor:
    """Query heads [B, H, L, head_dim], the rotated part last."""
    heads, plain = CONFIG.num_attention_heads, CONFIG.qk_nope_head_dim
    q = F.linear(latent, weights.q_b).view(*latent.shape[:2], heads, CONFIG.head_dim)
    return torch.cat([q[..., :plain], rope(q[..., plain:], cos, sin)], -1).transpose(1, 2)


def keys_values(
    normed: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, weights: AttentionWeights
) -> tuple[torch.Tensor, torch.Tensor]:
    """Key heads [B, H, L, head_dim] and value heads [B, H, L, v_head_dim]; the rotated part of the keys is
    shared by all heads."""
    rows, length = normed.shape[:2]
    heads, plain, rank = CONFIG.num_attention_heads, CONFIG.qk_nope_head_dim, CONFIG.kv_lora_rank
    compressed = F.linear(normed, weights.kv_a)
    latent = rms_norm(compressed[..., :rank], weights.kv_a_norm, LATENT_EPS)
    kv = F.linear(latent, weights.kv_b).view(rows, length, heads, plain + CONFIG.v_head_dim)
    rotated = rope(compressed[..., rank:].unsqueeze(2), cos, sin)
    rotated = rotated.expand(rows, length, heads, CONFIG.qk_rope_head_dim)
    keys = torch.cat([kv[..., :plain], rotated], -1)
    return keys.transpose(1, 2), kv[..., plain:].transpose(1, 2)


def merge_heads(x: torch.Tensor) -> torch.Tensor:
    """[B, H, L, dim] -> [B, L, H * dim]."""
    rows, heads, length, dim = x.shape
    return x.transpose(1, 2).reshape(rows, length, heads * dim)


def draft_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    earlier: list[tuple[torch.Tensor, torch.Tensor]],
    mask: torch.Tensor,
) -> torch.Tensor:
    """Attention of a draft step as an engine with one cache row per MTP position computes it.

    The first step (`earlier` empty) is causal attention. In a later step the query sees the verified rows
    of the first step, and of every later step only the row at its own position. `q` is already scaled.
    """
    if not earlier:
        return torch.softmax(q @ k.mT + mask, -1) @ v
    length = q.shape[2]
    first_k, first_v = earlier[0]
    own = [*earlier[1:], (k, v)]
    scores = [q @ first_k.mT + mask] + [(q * keys).sum(-1, keepdim=True) for keys, _ in own]
    shares = torch.cat(scores, -1).softmax(-1)
    out = shares[..., :length] @ first_v
    for step, (_, values) in enumerate(own):
        out = out + shares[..., length + step : length + step + 1] * values
    return out


def index_scores(
    parameters: Parameters,
    layer: int,
    normed: torch.Tensor,
    latent: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> torch.Tensor:
    """Scores [B, L, L] of the sparse-attention indexer; in its heads the rotated part comes first."""
    prefix = f"model.layers.{layer}.self_attn.indexer."
    heads, dim, rotated = CONFIG.index_n_heads, CONFIG.index_head_dim, CONFIG.qk_rope_head_dim
    q = F.linear(latent, parameters[prefix + "wq_b.weight"]).view(*latent.shape[:2], heads, dim)
    k = F.layer_norm(
        F.linear(normed, parameters[prefix + "wk.weight"]),
        (dim,),
        parameters[prefix + "k_norm.weight"],
        parameters[prefix + "k_norm.bias"],
        INDEX_NORM_EPS,
    ).unsqueeze(2)
    q = torch.cat([rope(q[..., :rotated], cos, sin), q[..., rotated:]], -1)
    k = torch.cat([rope(k[..., :rotated], cos, sin), k[..., rotated:]], -1).squeeze(2)
    scores = F.relu(torch.einsum("blhd,bmd->blhm", q, k) * dim**-0.5).float()
    weights = F.linear(normed, parameters[prefix + "weights_proj.weight"]).float() * heads**-0.5
    return torch.einsum("blh,blhm->blm", weights, scores)


def swiglu(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """down(silu(gate x) * up x)."""
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def route(scores: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts [tokens, chosen] and their weights from sigmoid scores [tokens, experts].

    The correction bias takes part in the choice only; weights are normalised and scaled.
    """
    chosen = (scores.detach() + bias).topk(CONFIG.num_experts_per_tok, -1, sorted=False).indices
    weights = scores.gather(1, chosen)
    return chosen, weights / (weights.sum(-1, keepdim=True) + 1e-20) * CONFIG.routed_scaling_factor


def causal_mask(length: int, dtype: torch.dtype) -> torch.Tensor:
    """[L, L], 0 where a query sees a key and minus infinity elsewhere."""
    return torch.full((length, length), float("-inf"), dtype=dtype).triu(1)
