"""GLM-5.x (`glm_moe_dsa`): latent attention, sparse-attention indexer, MTP layer."""

from .family import Family

# Stop ids of the fixture tokenizer (<|endoftext|>, <|user|>, <|observation|>), and of the
# fixtures with 256 ids, which have no tokenizer.
STOP_IDS = [481, 488, 490]
STOP_IDS_256 = [251, 253, 255]


def glm_config(**overrides):
    """GLM-5.2 (glm_moe_dsa) with every key the published config.json has."""
    base = {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        "dtype": "float32",
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 96,
        "moe_intermediate_size": 16,
        "num_hidden_layers": 4,
        "first_k_dense_replace": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "q_lora_rank": 40,
        "kv_lora_rank": 24,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "qk_head_dim": 24,
        "v_head_dim": 20,
        "head_dim": 16,  # like the real file: equals qk_nope_head_dim and is useless
        "index_topk": 4096,
        "index_head_dim": 16,
        "index_n_heads": 4,
        "index_topk_freq": 1,
        "index_skip_topk_offset": 3,
        "index_topk_pattern": None,
        "index_share_for_mtp_iteration": True,
        "indexer_rope_interleave": True,
        "rope_interleave": True,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "moe_layer_freq": 1,
        "moe_router_dtype": "float32",
        "ep_size": 1,
        "pretraining_tp": 1,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "use_cache": True,
        "num_nextn_predict_layers": 0,
        "eos_token_id": STOP_IDS,
        "pad_token_id": STOP_IDS[0],
        "transformers_version": "5.12.0",
    }
    base.update(overrides)
    return base


FAMILIES = (
    Family(
        name="glm_tiny",
        seed=1700,
        stored="f32",
        mtp="shared",
        tokenizer=True,
        config=glm_config(
            num_nextn_predict_layers=1,
            indexer_types=["full"] * 4,
            mlp_layer_types=["dense"] + ["sparse"] * 3,
        ),
        notes=(
            "Main fixture. DSA present but index_topk > sequence, so attention is dense. "
            "MTP layer at model.layers.4 without its own embed_tokens / shared_head.head, "
            "as in the published GLM-5.x checkpoints."
        ),
    ),
    Family(
        name="glm_sparse",
        seed=1938,
        mtp="shared",
        shards=2,
        config=glm_config(
            vocab_size=256,
            eos_token_id=STOP_IDS_256,
            pad_token_id=251,
            num_hidden_layers=6,
            hidden_size=64,
            intermediate_size=80,
            moe_intermediate_size=16,
            n_routed_experts=6,
            first_k_dense_replace=2,
            q_lora_rank=32,
            qk_rope_head_dim=16,
            qk_head_dim=32,
            index_topk=8,
            index_head_dim=24,
            index_n_heads=6,
            index_topk_freq=3,
            index_skip_topk_offset=2,
            indexer_types=["full", "full", "shared", "shared", "full", "shared"],
            mlp_layer_types=["dense"] * 2 + ["sparse"] * 4,
            rope_parameters={"rope_theta": 8000000, "rope_type": "default"},
            num_nextn_predict_layers=1,
            dtype="bfloat16",
        ),
        notes=(
            "DSA really prunes (index_topk=8); layers 2, 3 and 5 reuse the previous full "
            "layer's keys and carry no indexer tensors; the MTP layer has its own indexer. "
            "Sharded (2 files)."
        ),
    ),
    Family(
        name="glm_groups",
        seed=1549,
        bias_scale=0.35,
        config=glm_config(
            vocab_size=256,
            eos_token_id=STOP_IDS_256,
            pad_token_id=251,
            num_hidden_layers=3,
            hidden_size=64,
            intermediate_size=80,
            moe_intermediate_size=16,
            n_routed_experts=8,
            num_experts_per_tok=2,
            n_group=2,
            topk_group=1,
            routed_scaling_factor=2.5,
            index_topk=16,
            index_n_heads=6,
            index_topk_freq=2,
            index_skip_topk_offset=1,
            dtype="bfloat16",
        ),
        notes=(
            "n_group=2 / topk_group=1, large correction bias; indexer schedule given only by "
            "index_topk_freq / index_skip_topk_offset (full, shared, full); no indexer_types, "
            "no mlp_layer_types in config.json; index_topk=16 prunes."
        ),
    ),
    Family(
        name="glm_tiny_fp8",
        seed=1785,
        mtp="shared",
        fp8=True,
        config=glm_config(
            num_hidden_layers=2,
            hidden_size=152,
            intermediate_size=156,
            moe_intermediate_size=100,
            n_routed_experts=3,
            num_experts_per_tok=2,
            q_lora_rank=148,
            kv_lora_rank=40,
            v_head_dim=28,
            index_n_heads=9,
            index_head_dim=16,
            indexer_types=["full"] * 2,
            vocab_size=256,
            eos_token_id=STOP_IDS_256,
            pad_token_id=251,
            mlp_layer_types=["dense", "sparse"],
            num_nextn_predict_layers=1,
            dtype="bfloat16",
        ),
        notes=(
            "FP8 e4m3 weights with 128x128 block scales (weight_scale_inv, f32) laid out as in "
            "zai-org/GLM-5.2-FP8 and deepseek-ai/DeepSeek-V3; partial last blocks in both "
            "directions. Reference = float32 forward with w = fp8 * scale (no activation "
            "quantisation, no bf16 rounding of the dequantised weight)."
        ),
    ),
)
