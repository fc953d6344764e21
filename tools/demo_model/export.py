"""Exports a training checkpoint to a Hugging Face folder.

python -m demo_model.export CHECKPOINT tokenizer.json OUT
"""

import argparse
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tokenizers import Tokenizer

from .architecture import CONFIG
from .weights import load_checkpoint, stacked_to_unstacked

STOP_TOKENS = ("<|endoftext|>", "<|user|>", "<|observation|>")
TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def model_settings(stop_ids: list[int]) -> dict[str, Any]:
    """Content of config.json."""
    sizes = asdict(CONFIG)
    theta = sizes.pop("rope_theta")
    return {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        "dtype": "bfloat16",
        **sizes,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "num_key_value_heads": CONFIG.num_attention_heads,
        "qk_head_dim": CONFIG.head_dim,
        "head_dim": CONFIG.qk_rope_head_dim,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "moe_layer_freq": 1,
        "num_nextn_predict_layers": 1,
        # The same schedule as indexer_types, for readers that know only these two keys.
        "index_topk_freq": 2,
        "index_skip_topk_offset": 2,
        "rope_interleave": True,
        "indexer_rope_interleave": True,
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": stop_ids,
        "pad_token_id": stop_ids[0],
    }


def generation_settings(stop_ids: list[int]) -> dict[str, Any]:
    """Content of generation_config.json."""
    return {
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.95,
        "eos_token_id": stop_ids,
        "pad_token_id": stop_ids[0],
    }


def tokenizer_settings(tokenizer: Tokenizer) -> dict[str, Any]:
    """Content of tokenizer_config.json."""
    keys = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    added = {
        str(index): {key: getattr(token, key) for key in keys}
        for index, token in sorted(tokenizer.get_added_tokens_decoder().items())
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": added,
        "additional_special_tokens": [t["content"] for t in added.values() if t["special"]],
        "eos_token": STOP_TOKENS[0],
        "pad_token": STOP_TOKENS[0],
        "clean_up_tokenization_spaces": False,
        "do_lower_case": False,
        "model_max_length": CONFIG.max_position_embeddings,
        "padding_side": "left",
        "remove_space": False,
    }


def export(checkpoint_path: Path, tokenizer_path: Path, out: Path) -> None:
    """Writes weights, settings, tokenizer and chat template."""
    out.mkdir(parents=True, exist_ok=True)
    checkpoint = load_checkpoint(checkpoint_path)
    tensors = stacked_to_unstacked(checkpoint.parameters, checkpoint.bias)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    stop_ids = [tokenizer.token_to_id(token) for token in STOP_TOKENS]
    settings = {
        "config.json": model_settings(stop_ids),
        "generation_config.json": generation_settings(stop_ids),
        "tokenizer_config.json": tokenizer_settings(tokenizer),
    }
    for name, content in settings.items():
        (out / name).write_text(json.dumps(content, indent=2))
    shutil.copyfile(tokenizer_path, out / "tokenizer.json")
    shutil.copyfile(TEMPLATE, out / "chat_template.jinja")
    print(f"{len(tensors)} tensors, step {checkpoint.step}")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="demo_model.export")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    export(arguments.checkpoint, arguments.tokenizer, arguments.out)


if __name__ == "__main__":
    main()
