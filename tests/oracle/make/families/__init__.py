"""The table of fixtures, one file per group of related model families.

A new fixture is one `Family` in the file of its group.
"""

from . import deepseek, glm, linear_attention, qwen, sigmoid_router, softmax_router
from .family import BLOCK_PROMPT, LONG_PROMPT, Family

GROUPS = (glm, deepseek, softmax_router, qwen, sigmoid_router, linear_attention)
FAMILIES: dict[str, Family] = {family.name: family for group in GROUPS for family in group.FAMILIES}

__all__ = ["BLOCK_PROMPT", "FAMILIES", "LONG_PROMPT", "Family"]
