"""All kinds of documents with their weights, and the endless stream of a seed."""

from collections.abc import Callable, Iterator
from random import Random

from .arithmetic import calculations
from .code_samples import code_document
from .extraction import extraction_chat
from .facts import fact_chat
from .instructions import instruction_chat, list_chat, uppercase_chat
from .small_talk import declined, small_talk
from .story_chats import reading_chat, story_chat, story_text
from .tools import tool_chat

HELDOUT_SEED = "heldout"

# A new kind of document is one function and one line here.
DOCUMENTS: tuple[tuple[Callable[[Random], str], int], ...] = (
    (story_text, 16),
    (story_chat, 26),
    (reading_chat, 5),
    (small_talk, 10),
    (declined, 9),
    (fact_chat, 26),
    (instruction_chat, 20),
    (tool_chat, 12),
    (extraction_chat, 5),
    (code_document, 6),
    (calculations, 36),
    (uppercase_chat, 7),
    (list_chat, 9),
)


def document(rng: Random) -> str:
    """One document of a random kind."""
    kinds = [kind for kind, _ in DOCUMENTS]
    weights = [weight for _, weight in DOCUMENTS]
    return rng.choices(kinds, weights)[0](rng)


def stream(seed: str) -> Iterator[str]:
    """The documents of a seed. Each has a generator of its own, so the n-th document does not
    depend on the ones before it."""
    index = 0
    while True:
        yield document(Random(f"{seed}-{index}"))
        index += 1
