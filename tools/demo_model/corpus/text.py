"""Small text tools: templates with alternatives, articles, enumerations.

A template has alternatives in square brackets, `[a|b|c]`, and slots in braces, `{name}`. All
randomness comes from the generator that is passed in, and every function draws in a fixed order:
the same seed gives the same text.
"""

import re
from collections.abc import Mapping, Sequence
from random import Random

ALTERNATIVES = re.compile(r"\[([^\[\]]*)\]")


def expand(rng: Random, template: str, slots: Mapping[str, str] | None = None) -> str:
    """Chooses the alternatives, innermost first, then fills the slots."""
    while True:
        chosen = ALTERNATIVES.sub(lambda match: rng.choice(match.group(1).split("|")), template)
        if chosen == template:
            break
        template = chosen
    return template if slots is None else template.format_map(slots)


def capitalise(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def with_article(noun: str) -> str:
    """ "a fox", "an owl"."""
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def enumeration(items: Sequence[str]) -> str:
    """ "a, b and c"."""
    if len(items) == 1:
        return items[0]
    return ", ".join(items[:-1]) + " and " + items[-1]


def numbered(items: Sequence[str]) -> str:
    """One numbered line an item."""
    return "\n".join(f"{number}. {capitalise(item)}" for number, item in enumerate(items, start=1))


def run_of(rng: Random, items: Sequence[str], count: int) -> list[str]:
    """`count` neighbours in the order of the list, from the first or a random start: nothing
    repeats, and little is left to chance."""
    start = 0 if rng.random() < 0.4 else rng.randrange(len(items))
    return [items[(start + step) % len(items)] for step in range(count)]
