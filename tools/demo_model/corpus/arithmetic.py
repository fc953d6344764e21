"""Sums, differences and products of small numbers."""

from random import Random

from .conversation import Turn, conversation


def pair(rng: Random) -> tuple[int, int]:
    """Two numbers below 100, often below 21."""
    numbers = rng.randint(0, 99), rng.randint(0, 99)
    if rng.random() < 0.4:
        numbers = rng.randint(0, 20), rng.randint(0, 20)
    return numbers


def calculation(rng: Random) -> Turn:
    """One question and its result; differences are never negative."""
    choice = rng.random()
    if choice < 0.45:
        a, b = pair(rng)
        sign, word, value = "+", "plus", a + b
    elif choice < 0.75:
        a, b = sorted(pair(rng), reverse=True)
        sign, word, value = "-", "minus", a - b
    else:
        a, b = rng.randint(0, 10), rng.randint(0, 10)
        sign, word, value = "*", "times", a * b
    term = f"{a} {sign} {b}"
    asked = rng.choice(
        [
            f"What is {term}?",
            f"{term} = ?",
            term,
            f"What is {a} {word} {b}?",
            f"How much is {term}?",
            f"Calculate {term}.",
        ]
    )
    return asked, f"{term} = {value}"


def calculations(rng: Random) -> str:
    """A conversation of several calculations."""
    turns = [calculation(rng) for _ in range(rng.randint(2, 8))]
    return conversation(rng, turns, system="" if rng.random() < 0.8 else None)
