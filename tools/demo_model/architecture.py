"""The architecture of the demo model: GLM-5 (`glm_moe_dsa`) at a small size.

Parameters carry the names of the published checkpoints, except that the expert matrices of a layer are
stacked: `mlp.experts.gate_up` [experts, 2 * width, hidden] and `mlp.experts.down` [experts, hidden, width].
All inner dimensions are multiples of 64, the int4 group.
"""

import math
from dataclasses import dataclass

import torch

Parameters = dict[str, torch.Tensor]


@dataclass(frozen=True)
class ModelConfig:
    """Sizes; the field names are those of config.json."""

    vocab_size: int = 2560
    hidden_size: int = 256
    intermediate_size: int = 768
    moe_intermediate_size: int = 64
    num_hidden_layers: int = 6
    first_k_dense_replace: int = 1
    num_attention_heads: int = 4
    n_routed_experts: int = 32
    num_experts_per_tok: int = 4
    n_shared_experts: int = 1
    routed_scaling_factor: float = 2.5
    q_lora_rank: int = 128
    kv_lora_rank: int = 64
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 32
    v_head_dim: int = 64
    index_n_heads: int = 2
    index_head_dim: int = 64
    index_topk: int = 256
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 2048
    indexer_types: tuple[str, ...] = ("full", "full", "shared", "full", "shared", "full")

    @property
    def head_dim(self) -> int:
        """Width of a query or key head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def mtp_layer(self) -> int:
        """Number of the MTP layer, which follows the last decoder layer."""
        return self.num_hidden_layers

    @property
    def layers(self) -> range:
        """Numbers of all layers including the MTP layer."""
        return range(self.num_hidden_layers + 1)

    def is_dense(self, layer: int) -> bool:
        """Whether a layer has a dense feed-forward block."""
        return layer < self.first_k_dense_replace

    def has_indexer(self, layer: int) -> bool:
        """Whether a layer has an indexer of its own; the others reuse the keys of the last one."""
        return layer == self.mtp_layer or self.indexer_types[layer] == "full"


CONFIG = ModelConfig()


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of all parameters, in the order in which they are initialised and stored."""
    hidden, vocabulary = config.hidden_size, config.vocab_size
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "lm_head.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
    }
    for layer in config.layers:
        prefix = f"model.layers.{layer}."
        shapes[prefix + "input_layernorm.weight"] = (hidden,)
        shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
        shapes.update(attention_shapes(config, layer))
        shapes.update(feed_forward_shapes(config, layer))
        if layer == config.mtp_layer:
            for norm in ("enorm", "hnorm", "shared_head.norm"):
                shapes[f"{prefix}{norm}.weight"] = (hidden,)
            shapes[prefix + "eh_proj.weight"] = (hidden, 2 * hidden)
    return shapes


def attention_shapes(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the attention block and, where it has one, its indexer."""
    hidden, heads = config.hidden_size, config.num_attention_heads
    q_rank, kv_rank = config.q_lora_rank, config.kv_lora_rank
    shapes: dict[str, tuple[int, ...]] = {
        "q_a_proj.weight": (q_rank, hidden),
        "q_a_layernorm.weight": (q_rank,),
        "q_b_proj.weight": (heads * config.head_dim, q_rank),
        "kv_a_proj_with_mqa.weight": (kv_rank + config.qk_rope_head_dim, hidden),
        "kv_a_layernorm.weight": (kv_rank,),
        "kv_b_proj.weight": (heads * (config.qk_nope_head_dim + config.v_head_dim), kv_rank),
        "o_proj.weight": (hidden, heads * config.v_head_dim),
    }
    if config.has_indexer(layer):
        index_dim = config.index_head_dim
        shapes.update(
            {
                "indexer.wq_b.weight": (config.index_n_heads * index_dim, q_rank),
                "indexer.wk.weight": (index_dim, hidden),
                "indexer.k_norm.weight": (index_dim,),
                "indexer.k_norm.bias": (index_dim,),
                "indexer.weights_proj.weight": (config.index_n_heads, hidden),
            }
        )
    return {f"model.layers.{layer}.self_attn.{name}": shape for name, shape in shapes.items()}


def feed_forward_shapes(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the dense block, or of router, routed experts and shared expert."""
    hidden = config.hidden_size
    if config.is_dense(layer):
        width = config.intermediate_size
        shapes: dict[str, tuple[int, ...]] = {
            "gate_proj.weight": (width, hidden),
            "up_proj.weight": (width, hidden),
            "down_proj.weight": (hidden, width),
        }
    else:
        experts, width = config.n_routed_experts, config.moe_intermediate_size
        shapes = {
            "gate.weight": (experts, hidden),
            "experts.gate_up": (experts, 2 * width, hidden),
            "experts.down": (experts, hidden, width),
            "shared_experts.gate_proj.weight": (width, hidden),
            "shared_experts.up_proj.weight": (width, hidden),
            "shared_experts.down_proj.weight": (hidden, width),
        }
    return {f"model.layers.{layer}.mlp.{name}": shape for name, shape in shapes.items()}


def initial_weights(config: ModelConfig, seed: int = 0) -> Parameters:
    """Random weights to start training from."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in parameter_shapes(config).items():
        if len(shape) == 1:
            weights[name] = torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
        else:
            deviation = initial_deviation(name, shape, config)
            weights[name] = torch.randn(shape, generator=generator) * deviation
    return weights


def initial_deviation(name: str, shape: tuple[int, ...], config: ModelConfig) -> float:
    """Standard deviation of the initial values of a matrix."""
    if "embed_tokens" in name:
        return 0.1
    if "lm_head" in name:
        return 0.02
    if name.endswith("mlp.gate.weight"):
        return 0.5 / math.sqrt(shape[-1])
    deviation = 0.6 / math.sqrt(shape[-1])
    if "o_proj" in name or "down" in name:
        deviation /= math.sqrt(2 * config.num_hidden_layers)
    return deviation
