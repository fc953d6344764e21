"""The description of one fixture: its configuration file and how its checkpoint is laid out."""

from dataclasses import dataclass
from typing import Any

# Model types with latent attention: their residual stream is stored for the 33-id prompt.
LATENT_ATTENTION = ("glm_moe_dsa", "deepseek_v3", "deepseek_v32")

# Prompts are numbered by length (see `prompts.LENGTHS`).
LONG_PROMPT = 2
BLOCK_PROMPT = 1


@dataclass(frozen=True)
class Family:
    """One fixture.

    `config` is written to config.json as it stands, in the style the family is published in.
    `seed` is the first seed tried; the stored fixtures were accepted with it.
    """

    name: str
    config: dict[str, Any]
    seed: int
    notes: str
    stored: str = "bf16"
    """Storage type of the weights, "bf16" or "f32"."""
    mtp: str | None = None
    """MTP layer: "shared" borrows embedding and head, "own" repeats both, None has no layer."""
    shards: int = 1
    fp8: bool = False
    bias_scale: float = 0.2
    """Half-width of the router correction bias."""
    tokenizer: bool = False
    """Whether the fixture folder also gets the tokenizer files."""
    optional: bool = False
    """A failure (a library too old for the family) skips the fixture instead of stopping."""

    @property
    def hidden_prompt(self) -> int:
        """Index of the prompt whose residual stream is stored after every layer."""
        latent = self.config["model_type"] in LATENT_ATTENTION
        return LONG_PROMPT if latent else BLOCK_PROMPT
