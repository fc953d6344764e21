"""DeepSeek V3, V3.2 and V4: the configurations their published checkpoints carry."""

from .family import Family


def v3_config(**overrides):
    """DeepSeek-V3 keys as published (old style rope_theta + rope_scaling)."""
    base = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "torch_dtype": "bfloat16",
        "vocab_size": 128,
        "hidden_size": 48,
        "intermediate_size": 64,
        "moe_intermediate_size": 16,
        "num_hidden_layers": 3,
        "first_k_dense_replace": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "n_routed_experts": 16,
        "num_experts_per_tok": 4,
        "n_shared_experts": 2,
        "q_lora_rank": 40,
        "kv_lora_rank": 24,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 12,
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "moe_layer_freq": 1,
        "ep_size": 1,
        "rope_theta": 10000,
        # mscale != mscale_all_dim on purpose: cos/sin get scaled AND the softmax scale changes
        "rope_scaling": {
            "type": "yarn",
            "factor": 4,
            "original_max_position_embeddings": 64,
            "beta_fast": 4,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 0.6,
        },
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "use_cache": True,
        "num_nextn_predict_layers": 1,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "transformers_version": "4.33.1",
    }
    base.update(overrides)
    return base


FAMILIES = (
    Family(
        name="deepseek_v3",
        seed=1000,
        mtp="own",
        shards=3,
        config=v3_config(),
        notes=(
            "n_group=4 / topk_group=2, 2 shared experts (one MLP of double width), yarn with "
            "mscale != mscale_all_dim; MTP layer with its own embed_tokens and "
            "shared_head.head as in deepseek-ai/DeepSeek-V3. Sharded (3 files)."
        ),
    ),
    Family(
        name="deepseek_v3_noqlora",
        seed=1195,
        config=v3_config(
            q_lora_rank=None,
            num_hidden_layers=2,
            n_shared_experts=1,
            num_nextn_predict_layers=0,
            n_group=1,
            topk_group=1,
            n_routed_experts=8,
            num_experts_per_tok=2,
            norm_topk_prob=False,
            rope_scaling=None,
        ),
        notes=("q_lora_rank null -> a plain q_proj; norm_topk_prob false; no rope scaling."),
    ),
    Family(
        name="deepseek_v32",
        seed=1196,
        config=v3_config(
            architectures=["DeepseekV32ForCausalLM"],
            model_type="deepseek_v32",
            num_hidden_layers=3,
            n_shared_experts=1,
            index_topk=8,
            index_head_dim=24,
            index_n_heads=6,
            num_nextn_predict_layers=0,
            rope_scaling={
                "type": "yarn",
                "factor": 4,
                "original_max_position_embeddings": 64,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
        ),
        notes=(
            "DSA with half-split (NOT interleaved) rope inside the indexer, interleaved rope in "
            "the main attention; index_topk=8 prunes."
        ),
    ),
    Family(
        name="deepseek_v4",
        seed=1292,
        optional=True,
        config={
            "architectures": ["DeepseekV4ForCausalLM"],
            "model_type": "deepseek_v4",
            "torch_dtype": "bfloat16",
            "vocab_size": 128,
            "hidden_size": 48,
            "moe_intermediate_size": 16,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "q_lora_rank": 32,
            "qk_rope_head_dim": 8,
            "o_groups": 2,
            "o_lora_rank": 24,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "num_hash_layers": 1,
            "scoring_func": "sqrtsoftplus",
            "topk_method": "noaux_tc",
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.5,
            "swiglu_limit": 10.0,
            # compress_ratios is what the hub file has (0 = window only, 4 = CSA, big = HCA);
            # layer_types / compress_rates say the same in the transformers 5 vocabulary
            "compress_ratios": [0, 4, 16],
            "layer_types": [
                "sliding_attention",
                "compressed_sparse_attention",
                "heavily_compressed_attention",
            ],
            "compress_rates": {
                "compressed_sparse_attention": 4,
                "heavily_compressed_attention": 16,
            },
            "compress_rope_theta": 160000.0,
            "rope_theta": 10000.0,
            "rope_scaling": {
                "type": "yarn",
                "factor": 4,
                "original_max_position_embeddings": 64,
                "beta_fast": 32,
                "beta_slow": 1,
            },
            "sliding_window": 12,
            "index_n_heads": 6,
            "index_head_dim": 16,
            "index_topk": 6,
            "hc_mult": 4,
            "hc_sinkhorn_iters": 20,
            "hc_eps": 1e-6,
            "max_position_embeddings": 256,
            "rms_norm_eps": 1e-6,
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "tie_word_embeddings": False,
            "use_cache": True,
            "num_nextn_predict_layers": 0,
            "bos_token_id": 0,
            "eos_token_id": 1,
        },
        notes=(
            "hyper-connections (4 streams), window-only / CSA / HCA layers, hash routing in "
            "layer 0, sqrt-softplus router, grouped output projection, sinks. HCA rate is 16 "
            "here (128 in the published models) so that it acts within 88 tokens."
        ),
    ),
)
