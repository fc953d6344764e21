"""Deterministic synthetic corpus of the demo model.

Simple English made by a program: stories, chats, facts, arithmetic, instructions, tool calls,
extraction to JSON, code. No text is taken from anywhere. The same seed gives the same text, byte
for byte, on every platform.
"""

from .documents import HELDOUT_SEED, document, stream

__all__ = ["HELDOUT_SEED", "document", "stream"]
