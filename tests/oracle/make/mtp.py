"""The multi-token-prediction layer, built from the family's own decoder layer class.

    x_i = eh_proj([enorm(E[t_{i+1}]) ; hnorm(h_i)]),  h_i = hidden state after the final norm
    y   = decoder_layer(x)                            (its own causal attention)
    logits_i = head(shared_head.norm(y_i))            -> predicts t_{i+2}

The position of pair i is i, the position of h_i.
"""

import copy
from typing import Any

import torch

from .randomise import Draw, model_parameters, randomise

SEED_OFFSET = 500_000


class Mtp(torch.nn.Module):
    """One MTP layer on top of `main`, whose embedding and head it borrows."""

    def __init__(self, main: Any, config: Any) -> None:
        super().__init__()
        last = main.model.layers[-1]
        norm_class = type(last.input_layernorm)
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.enorm, self.hnorm = norm_class(hidden, eps=eps), norm_class(hidden, eps=eps)
        self.eh_proj = torch.nn.Linear(2 * hidden, hidden, bias=False)
        self.layer_index = config.num_hidden_layers
        self.block = type(last)(config, self.layer_index)
        self.norm = norm_class(hidden, eps=eps)
        object.__setattr__(self, "main", main)  # not a submodule

    def forward(
        self,
        next_ids: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor | None = None,
        hidden_first: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Layer output [1, tokens, hidden] before and after `shared_head.norm`. `hidden_first`
        swaps the halves of the input, which is wrong for these checkpoints."""
        main = self.main
        embedded = main.model.embed_tokens(next_ids)
        halves = [self.enorm(embedded), self.hnorm(hidden)]
        x = self.eh_proj(torch.cat(halves[::-1] if hidden_first else halves, dim=-1))
        length = x.shape[1]
        if positions is None:
            positions = torch.arange(length)[None]
        lowest = torch.finfo(x.dtype).min
        mask = torch.full((length, length), lowest, dtype=x.dtype).triu(1)[None, None]
        rope = main.model.rotary_emb(x, position_ids=positions)
        y = self.block(x, attention_mask=mask, position_embeddings=rope, position_ids=positions)
        y = y[0] if isinstance(y, tuple) else y
        return y, self.norm(y)


def make_mtp(model: Any) -> Mtp:
    """An MTP layer for `model`: one more layer, sparse and with its own full indexer."""
    config = copy.deepcopy(model.config)
    for key, kind in (("indexer_types", "full"), ("mlp_layer_types", "sparse")):
        if isinstance(getattr(config, key, None), list):
            setattr(config, key, [*getattr(config, key), kind])
    if isinstance(getattr(config, "layer_types", None), list):
        config.layer_types = [*config.layer_types, config.layer_types[-1]]
    mtp = Mtp(model, config).float()
    mtp.eval()
    for module in mtp.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = "eager"
            module.config._experts_implementation = "eager"
    return mtp


def randomise_mtp(mtp: Mtp, seed: int, draw: Draw) -> None:
    """Redraws the layer from its own seed."""
    randomise(model_parameters(mtp, "mtp."), seed + SEED_OFFSET, draw)


def mtp_tensors(mtp: Mtp, own_head: bool) -> dict[str, torch.Tensor]:
    """Checkpoint names of the layer, expert matrices one by one."""
    prefix = f"model.layers.{mtp.layer_index}."
    out = {
        prefix + "enorm.weight": mtp.enorm.weight,
        prefix + "hnorm.weight": mtp.hnorm.weight,
        prefix + "eh_proj.weight": mtp.eh_proj.weight,
        prefix + "shared_head.norm.weight": mtp.norm.weight,
    }
    for name, tensor in mtp.block.state_dict().items():
        if name == "mlp.experts.gate_up_proj":
            for expert in range(tensor.shape[0]):
                gate, up = tensor[expert].chunk(2, dim=0)
                out[f"{prefix}mlp.experts.{expert}.gate_proj.weight"] = gate
                out[f"{prefix}mlp.experts.{expert}.up_proj.weight"] = up
        elif name == "mlp.experts.down_proj":
            for expert in range(tensor.shape[0]):
                out[f"{prefix}mlp.experts.{expert}.down_proj.weight"] = tensor[expert]
        else:
            out[prefix + name] = tensor
    if own_head:
        out[prefix + "embed_tokens.weight"] = mtp.main.model.embed_tokens.weight
        out[prefix + "shared_head.head.weight"] = mtp.main.lm_head.weight
    return {name: tensor.detach().clone().contiguous() for name, tensor in out.items()}


def load_mtp(mtp: Mtp, tensors: dict[str, torch.Tensor]) -> None:
    """Fills the layer from checkpoint tensors, so that references use what is on disk."""
    prefix = f"model.layers.{mtp.layer_index}."
    stored = {
        name.removeprefix(prefix): tensor.float()
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
    with torch.no_grad():
        mtp.enorm.weight.copy_(stored["enorm.weight"])
        mtp.hnorm.weight.copy_(stored["hnorm.weight"])
        mtp.eh_proj.weight.copy_(stored["eh_proj.weight"])
        mtp.norm.weight.copy_(stored["shared_head.norm.weight"])
        for name, tensor in mtp.block.state_dict().items():
            if name == "mlp.experts.gate_up_proj":
                for expert in range(tensor.shape[0]):
                    gate = stored[f"mlp.experts.{expert}.gate_proj.weight"]
                    up = stored[f"mlp.experts.{expert}.up_proj.weight"]
                    tensor[expert].copy_(torch.cat([gate, up]))
            elif name == "mlp.experts.down_proj":
                for expert in range(tensor.shape[0]):
                    tensor[expert].copy_(stored[f"mlp.experts.{expert}.down_proj.weight"])
            else:
                tensor.copy_(stored[name])
