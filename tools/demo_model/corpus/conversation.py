"""The chat format: special tokens, turns, system prompts."""

from collections.abc import Sequence
from random import Random

START = "[gMASK]<sop>"
END_OF_TEXT = "<|endoftext|>"
ANSWER = "<|assistant|><think></think>"

Turn = tuple[str, str]
"""What the user says, and the answer."""

SYSTEM_PROMPTS = [
    "You are a helpful assistant.",
    "You are colibri's demo model.",
    "You are a friendly assistant. Keep answers short.",
    "Answer briefly.",
    "You are a helpful assistant who answers in simple words.",
    "Be polite and honest.",
]


def conversation(
    rng: Random, turns: Sequence[Turn], system: str | None = None, thinking: bool = False
) -> str:
    """A whole conversation. `system` None leaves the system prompt to chance, "" has none;
    `thinking` lets the model think aloud in half of the cases."""
    text = START
    if system is None and rng.random() < 0.25:
        system = rng.choice(SYSTEM_PROMPTS)
    if system:
        text += "<|system|>" + system
    mode = rng.random()
    for user, answer in turns:
        text += "<|user|>" + user
        if thinking and mode < 0.5:
            text += f"<|assistant|><think>The user says: {user}</think>{answer}"
        elif mode > 0.97:
            text += "<|assistant|></think>" + answer
        else:
            text += ANSWER + answer
    return text + "<|user|>"


def plain_text(text: str) -> str:
    """A document that is no conversation."""
    return START + text + END_OF_TEXT
