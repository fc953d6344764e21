"""One fixture from its family: the search for a usable seed, and the files."""

import copy
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig

from . import checks
from .errors import SeedRejectedError
from .families import FAMILIES, Family
from .files import (
    dequantised,
    dump_json,
    load_json,
    read_checkpoint,
    save_tensors,
    storage_type,
    write_checkpoint,
)
from .fp8 import quantise_checkpoint, quantization_config
from .greedy import TOKENS
from .models import build, load, loadable_folder, published_tensors, vocabulary_size
from .mtp import Mtp, load_mtp, make_mtp, mtp_tensors, randomise_mtp
from .mtp_reference import mtp_reference
from .prompts import LENGTHS, make_prompts
from .randomise import Draw, model_parameters, randomise
from .reference import Recorder

VERSIONS = {"transformers": transformers.__version__, "torch": torch.__version__}


def make_fixture(family: Family, out: Path, search: int) -> None:
    """Tries up to `search` seeds from the stored one on and keeps the first usable one."""
    folder = out / family.name
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    for seed in range(family.seed, family.seed + search):
        try:
            summary = try_seed(family, folder, seed)
        except SeedRejectedError as reason:
            print(f"[{family.name}]   seed {seed}: {reason}", flush=True)
            continue
        seconds = time.monotonic() - started
        print(f"[{family.name}] seed {seed} accepted ({seconds:.0f} s)  {summary}", flush=True)
        return
    raise SystemExit(f"{family.name}: no usable seed among {search}")


def try_seed(family: Family, folder: Path, seed: int) -> str:
    """Writes checkpoint and references for one seed, or raises `SeedRejectedError`."""
    write_model(family, folder, seed)
    has_mtp = family.mtp is not None
    # From here on only what is on disk is used.
    with loadable_folder(family, folder) as source:
        model = load(source, family.config["num_hidden_layers"] if has_mtp else None)
    mtp = make_mtp(model) if has_mtp else None
    if mtp is not None:
        load_mtp(mtp, dequantised(read_checkpoint(folder)))
    reference, arrays = make_reference(family, model, mtp, seed)
    # In a folder of its own: readers that take every *.safetensors of a model must not see it.
    (folder / "ref").mkdir(exist_ok=True)
    save_tensors(arrays, folder / "ref" / "reference.safetensors")
    dump_json(reference, folder / "ref" / "reference.json")
    if not family.fp8:
        write_current_config(family, folder)
    return f"tolerance {reference['tolerance']}  margins {reference['min_margin']}"


def write_model(family: Family, folder: Path, seed: int) -> None:
    """config.json and the weights."""
    model = build(family.config)
    config = model.config
    draw = Draw(
        model_type=config.model_type,
        hidden_size=config.get_text_config().hidden_size,
        experts=getattr(config, "n_routed_experts", None),
        stored=family.stored,
        bias_scale=family.bias_scale,
    )
    randomise(model_parameters(model), seed, draw)
    tensors = published_tensors(model)
    if family.mtp is not None:
        mtp = make_mtp(model)
        randomise_mtp(mtp, seed, draw)
        tensors.update(mtp_tensors(mtp, own_head=family.mtp == "own"))
    stored = {name: storage_type(name, t, family.stored) for name, t in tensors.items()}
    written = copy.deepcopy(family.config)
    if family.fp8:
        stored = quantise_checkpoint(stored)
        written["quantization_config"] = quantization_config(family.config)
    dump_json(written, folder / "config.json")
    write_checkpoint(folder, stored, family.shards)


def make_reference(
    family: Family, model: Any, mtp: Mtp | None, seed: int
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The content of reference.json and of reference.safetensors."""
    vocabulary = vocabulary_size(model)
    # GLM: only ordinary ids in the prompts, and no stop id inside the greedy continuation.
    is_glm = family.config["model_type"] == "glm_moe_dsa"
    stop_ids = set(family.config["eos_token_id"]) if is_glm else set()
    prompts = make_prompts(min(stop_ids) if is_glm else vocabulary)
    recorder = Recorder(family, model, stop_ids)
    recorder.record(prompts)
    arrays, entries = recorder.arrays, recorder.entries
    reference: dict[str, Any] = {
        "family": family.name,
        "seed": seed,
        "notes": family.notes,
        "made_with": VERSIONS,
        "vocab_size": vocabulary,
        "dtype_stored": "fp8_e4m3 + bf16" if family.fp8 else family.stored,
        "prompts": entries,
        "experts_never_selected": {},
        "min_margin": recorder.smallest_margins(),
    }
    if mtp is not None:
        mtp_reference(model, mtp, reference, arrays, family)
    reference["tolerance"] = checks.tolerances(model, prompts, arrays, recorder.cached_difference)
    reference["tensors_without_effect_on_p3"] = checks.without_effect(model, prompts[3], arrays["p3.logits"])
    optional = {
        "latent_norm_eps": checks.latent_norm_eps(model, prompts, arrays, entries),
        "router_bias_effect": checks.router_bias_effect(model, prompts),
    }
    reference.update({key: value for key, value in optional.items() if value is not None})
    reference["tensors"] = "reference.safetensors"
    return reference, arrays


def write_current_config(family: Family, folder: Path) -> None:
    """The same configuration as version 5 of the library writes it, for tests of parsers."""
    config = AutoConfig.from_pretrained(folder)
    config.architectures = family.config["architectures"]
    (folder / "ref" / "config.transformers5.json").write_text(config.to_json_string())


def write_index(out: Path) -> None:
    """index.json: one row for every fixture present in the folder."""
    rows = []
    for name in FAMILIES:
        folder = out / name
        if not (folder / "ref" / "reference.json").exists():
            continue
        config = load_json(folder / "config.json")
        reference = load_json(folder / "ref" / "reference.json")
        rows.append(
            {
                "name": name,
                "model_type": config["model_type"],
                "stored": reference["dtype_stored"],
                "seed": reference["seed"],
                "mtp": "mtp" in reference,
                "sharded": (folder / "model.safetensors.index.json").exists(),
                "tolerance": reference["tolerance"],
                "min_margin": reference["min_margin"],
                "bytes": sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()),
                "notes": reference["notes"],
            }
        )
    index = {
        "made_with": VERSIONS,
        "prompt_lengths": list(LENGTHS),
        "greedy_tokens": TOKENS,
        "fixtures": rows,
    }
    dump_json(index, out / "index.json")
