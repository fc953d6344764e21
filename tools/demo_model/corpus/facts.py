"""Questions with one right answer: capitals, animals, words, days, numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from .arithmetic import calculation
from .conversation import Turn, conversation
from .fact_tables import (
    BABIES,
    CAPITALS,
    COLOUR_OF,
    DAYS_IN_MONTH,
    FOOD_OF,
    GENERAL,
    HOMES,
    HOW_MANY,
    LEGS,
    OPPOSITES,
    PAST_TENSES,
    PLURALS,
    SOUNDS,
)
from .text import capitalise, expand, with_article
from .words import DAYS, MONTHS, SEASONS


@dataclass(frozen=True)
class Lookup:
    """A table of facts with its question and answer. Slots: `k` key and `v` value, `ak` and `av`
    with their article, `K` and `Ak` with a capital letter."""

    table: dict[str, str]
    asked: str
    answer: str

    def __call__(self, rng: Random) -> Turn:
        key = rng.choice(list(self.table))
        value = self.table[key]
        slots = {
            "k": key,
            "v": value,
            "K": capitalise(key),
            "ak": with_article(key),
            "Ak": capitalise(with_article(key)),
            "av": with_article(value),
        }
        return expand(rng, self.asked, slots), self.answer.format_map(slots)


def capital(rng: Random) -> Turn:
    slots = {"k": rng.choice(list(CAPITALS))}
    slots["v"] = CAPITALS[slots["k"]]
    if rng.random() < 0.75:
        asked = (
            "[What is the capital of {k}?|What's the capital of {k}?|Which city is the capital of {k}?|"
            "capital of {k}?|Tell me the capital of {k}.]"
        )
        return expand(rng, asked, slots), "The capital of {k} is {v}.".format_map(slots)
    asked = "[{v} is the capital of which country|Which country has the capital {v}]?"
    return expand(rng, asked, slots), "{v} is the capital of {k}.".format_map(slots)


def neighbour(rng: Random, items: list[str], index: int, step: int, unit: str, forms: str) -> Turn:
    """The day or month before or after another one."""
    word = "after" if step > 0 else "before"
    slots = {"word": word, "k": items[index], "unit": unit}
    answer = f"The {unit} {word} {items[index]} is {items[(index + step) % len(items)]}."
    return expand(rng, forms, slots), answer


def day(rng: Random) -> Turn:
    index = rng.randint(0, 6)
    step = 1 if rng.random() < 0.5 else -1
    forms = "[What day comes {word} {k}|Which day is {word} {k}|What is the day {word} {k}]?"
    return neighbour(rng, DAYS, index, step, "day", forms)


def month(rng: Random) -> Turn:
    index = rng.randint(0, 11)
    choice = rng.random()
    if choice < 0.7:
        forms = "[What month comes {word} {k}|Which month is {word} {k}]?"
        return neighbour(rng, MONTHS, index, 1 if choice < 0.4 else -1, "month", forms)
    leap = " In a leap year it has 29." if MONTHS[index] == "February" else ""
    answer = f"{MONTHS[index]} has {DAYS_IN_MONTH[index]} days.{leap}"
    return f"How many days are in {MONTHS[index]}?", answer


def season(rng: Random) -> Turn:
    index = rng.randint(0, 3)
    following = capitalise(SEASONS[(index + 1) % 4])
    return f"Which season comes after {SEASONS[index]}?", f"{following} comes after {SEASONS[index]}."


def how_many(rng: Random) -> Turn:
    key = rng.choice(list(HOW_MANY))
    return f"How many {key}?", HOW_MANY[key]


def general(rng: Random) -> Turn:
    asked, answer = rng.choice(GENERAL)
    return expand(rng, asked), answer


def next_number(rng: Random) -> Turn:
    number = rng.randint(0, 98)
    if rng.random() < 0.6:
        asked = expand(rng, f"[What number comes after {number}|What comes after {number}]?")
        return asked, f"The number after {number} is {number + 1}."
    return f"What number comes before {number + 1}?", f"The number before {number + 1} is {number}."


def comparison(rng: Random) -> Turn:
    a, b = rng.sample(range(100), 2)
    large, small = max(a, b), min(a, b)
    if rng.random() < 0.5:
        return f"Which is bigger, {a} or {b}?", f"{large} is bigger than {small}."
    return f"Which is smaller, {a} or {b}?", f"{small} is smaller than {large}."


def parity(rng: Random) -> Turn:
    number = rng.randint(0, 99)
    answer = f"{number} is {'even' if number % 2 == 0 else 'odd'}."
    return f"Is {number} even or odd?", answer


# Each kind is drawn below its bound and above the one before; the rest is arithmetic.
FACTS: tuple[tuple[float, Callable[[Random], Turn]], ...] = (
    (0.16, capital),
    (
        0.22,
        Lookup(
            COLOUR_OF,
            "[What colour is {k}|Which colour is {k}|What color is {k}]?",
            "{K} is {v}.",
        ),
    ),
    (
        0.28,
        Lookup(
            SOUNDS,
            "[What sound does {ak} make|What does {ak} say|What noise does {ak} make]?",
            "{Ak} {v}.",
        ),
    ),
    (
        0.33,
        Lookup(
            BABIES,
            "[What is a baby {k} called|What do you call a baby {k}]?",
            "A baby {k} is called {av}.",
        ),
    ),
    (0.38, Lookup(HOMES, "Where does {ak} live?", "{Ak} lives {v}.")),
    (0.42, Lookup(LEGS, "How many legs does {ak} have?", "{Ak} has {v} legs.")),
    (0.46, Lookup(FOOD_OF, "What does {ak} eat?", "{Ak} eats {v}.")),
    (
        0.52,
        Lookup(
            OPPOSITES,
            "[What is the opposite of {k}?|What's the opposite of {k}?|Give me the opposite of {k}.]",
            "The opposite of {k} is {v}.",
        ),
    ),
    (0.55, Lookup(PLURALS, "What is the plural of {k}?", "The plural of {k} is {v}.")),
    (0.58, Lookup(PAST_TENSES, "What is the past tense of {k}?", "The past tense of {k} is {v}.")),
    (0.64, day),
    (0.69, month),
    (0.71, season),
    (0.76, how_many),
    (0.86, general),
    (0.89, next_number),
    (0.92, comparison),
    (0.94, parity),
)


def simple_fact(rng: Random) -> Turn:
    """One question with its answer."""
    choice = rng.random()
    for bound, make in FACTS:
        if choice < bound:
            return make(rng)
    return calculation(rng)


def fact_chat(rng: Random) -> str:
    """A conversation of one to four questions."""
    count = rng.choice([1, 2, 2, 3, 4])
    turns = [simple_fact(rng) if rng.random() < 0.85 else calculation(rng) for _ in range(count)]
    if rng.random() < 0.08:
        loud = [(asked, answer.upper()) for asked, answer in turns]
        return conversation(rng, loud, system="Answer in capital letters.")
    if rng.random() < 0.1:
        turns.append((expand(rng, "[Thank you|Thanks]."), "You are welcome!"))
    return conversation(rng, turns, thinking=rng.random() < 0.2)
