"""Exact-match accuracy of the last answer on fresh documents of the generator, decoded greedily.

Facts, capitals, the times table and most small sums are closed tables the model has seen, so those rows
measure recall; tool calls, extraction and questions about stories are mostly new combinations.
"""

from collections.abc import Callable
from random import Random

import torch

from ..corpus.conversation import conversation
from ..corpus.extraction import extraction_chat
from ..corpus.fact_tables import CAPITALS
from ..corpus.facts import simple_fact
from ..corpus.instructions import uppercase_chat
from ..corpus.small_talk import declined
from ..corpus.story_chats import reading_chat
from ..corpus.tools import tool_chat
from .setup import Result, Setup

DOCUMENTS = 120
THINK_END = "</think>"


def one_fact(rng: Random) -> str:
    return conversation(rng, [simple_fact(rng)])


def one_capital(rng: Random) -> str:
    country = rng.choice(list(CAPITALS))
    turn = (f"What is the capital of {country}?", f"The capital of {country} is {CAPITALS[country]}.")
    return conversation(rng, [turn], system="")


def sums(low: int, high: int, sign: str) -> Callable[[Random], str]:
    """One calculation with numbers of a range."""

    def document(rng: Random) -> str:
        a, b = rng.randint(low, high), rng.randint(low, high)
        if sign == "-" and a < b:
            a, b = b, a
        value = {"+": a + b, "-": a - b, "*": a * b}[sign]
        turn = (f"What is {a} {sign} {b}?", f"{a} {sign} {b} = {value}")
        return conversation(rng, [turn], system="")

    return document


KINDS: dict[str, Callable[[Random], str]] = {
    "facts (one turn)": one_fact,
    "capitals": one_capital,
    "a+b, 0-99": sums(0, 99, "+"),
    "a-b, 0-99": sums(0, 99, "-"),
    "a+b, 0-20": sums(0, 20, "+"),
    "a*b, 0-10": sums(0, 10, "*"),
    "uppercase": uppercase_chat,
    "unknown -> declines": declined,
    "question about a story in the prompt": reading_chat,
    "JSON extraction": extraction_chat,
    "tool: last turn (call or reply)": tool_chat,
}


@torch.no_grad()
def exact_match(setup: Setup) -> Result:
    """Accuracy by kind."""
    network = setup.network()
    result = {}
    for name, make in KINDS.items():
        right = 0
        for number in range(DOCUMENTS):
            text = make(Random(f"battery-{name}-{number}"))
            cut = text.rfind(THINK_END) + len(THINK_END)
            prompt = setup.tokenizer.encode(text[:cut], add_special_tokens=False).ids
            ids = torch.tensor([setup.tokenizer.encode(text, add_special_tokens=False).ids])
            hidden = network.hidden(ids)[:, len(prompt) - 1 : -1]
            best = network.logits(hidden).argmax(-1)[0]
            right += bool((best == ids[0, len(prompt) :]).all())
        result[name] = right / DOCUMENTS
    return result
