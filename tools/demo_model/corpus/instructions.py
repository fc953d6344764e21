"""Small tasks on words and lists: naming, ordering, letter case, repeating, counting, remembering."""

import json
from collections.abc import Callable
from random import Random

from .conversation import Turn, conversation
from .fact_tables import CAPITALS, CATEGORIES, WORDS
from .facts import simple_fact
from .poems import poem_request
from .text import capitalise, enumeration, expand, numbered, run_of, with_article
from .words import (
    ADJECTIVES,
    COLOURS,
    FOODS,
    KINDS,
    NUMBERS,
    PEOPLE,
    PETS,
    SPOTS,
    TOYS,
    WEATHER,
)

REVERSE = [
    "In reverse order, please.",
    "Now in reverse order.",
    "Say it in reverse order.",
    "Reverse the order.",
]
UPPERCASE = [
    "Say it in uppercase.",
    "In capital letters, please.",
    "Now in uppercase.",
    "Write it in uppercase.",
]
PHRASES = [
    "good morning",
    "good evening",
    "good night",
    "thank you",
    "hello world",
    "hello",
    "goodbye",
    "happy birthday",
    "see you soon",
    "how are you",
    "well done",
    "good luck",
    "come here",
    "stop",
    "yes",
    "no",
    "please",
    "welcome",
    "sorry",
    "help",
]
COUNTABLE = ["apples", "books", "coins", "shells", "eggs", "stones", "cookies"]


def draw_list(rng: Random) -> tuple[str, list[str], str]:
    """A category, some of its members, and their number in words or digits."""
    category = rng.choice(list(CATEGORIES))
    count = rng.randint(2, min(5, len(CATEGORIES[category])))
    items = run_of(rng, CATEGORIES[category], count)
    return category, items, NUMBERS[count] if rng.random() < 0.7 else str(count)


def as_text(items: list[str], is_list: bool) -> str:
    """A numbered list, or one sentence."""
    return numbered(items) if is_list else capitalise(enumeration(items)) + "."


def name_things(rng: Random) -> list[Turn]:
    category, items, count = draw_list(rng)
    asked = expand(
        rng,
        "[List {w} {k}|Name {w} {k}|Give me {w} {k}|Tell me {w} {k}|Can you name {w} {k}|list {w} {k}][.|]",
        {"w": count, "k": category},
    )
    if asked.startswith("Can"):
        asked = asked.rstrip(".") + "?"
    # This draw decides nothing; without it every seed would give another corpus.
    rng.random()
    is_list = "list" in asked.lower()
    answer = as_text(items, is_list)
    turns = [(asked, answer)]
    choice = rng.random()
    if choice < 0.18:
        turns.append((rng.choice(REVERSE), as_text(items[::-1], is_list)))
    elif choice < 0.36:
        turns.append((rng.choice(UPPERCASE), answer.upper()))
    elif choice < 0.5:
        asked = rng.choice(["What was the first one?", "Which one was first?"])
        turns.append((asked, f"The first one was {items[0]}."))
    elif choice < 0.6:
        asked = rng.choice(["What was the last one?", "Which one was last?"])
        turns.append((asked, f"The last one was {items[-1]}."))
    elif choice < 0.72:
        asked = rng.choice(["Answer in JSON.", "As JSON, please.", "Now as a JSON array."])
        turns.append((asked, json.dumps(items)))
    return turns


def to_uppercase(rng: Random) -> list[Turn]:
    word = rng.choice(WORDS)
    asked = (
        '[Say {w} in uppercase|Write {w} in uppercase|Write "{w}" in capital letters|'
        "Put {w} in uppercase|uppercase: {w}][.|]"
    )
    return [(expand(rng, asked, {"w": word}), word.upper())]


def to_lowercase(rng: Random) -> list[Turn]:
    word = rng.choice(WORDS)
    asked = "[Say {w} in lowercase|Write {w} in lowercase|lowercase: {w}][.|]"
    return [(expand(rng, asked, {"w": word.upper()}), word)]


def list_task(rng: Random) -> list[Turn]:
    category = rng.choice(list(CATEGORIES))
    members = CATEGORIES[category]
    items = rng.sample(members, rng.randint(3, min(5, len(members))))
    slots = {"items": ", ".join(items)}
    choice = rng.random()
    if choice < 0.45:
        asked = (
            "[Reverse this list: {items}|Put this list in reverse order: {items}|"
            "Say in reverse order: {items}][.|]"
        )
        answer = ", ".join(items[::-1])
    elif choice < 0.6:
        asked = "[What is the first word in this list: {items}|Which word is first: {items}]?"
        answer = items[0]
    elif choice < 0.75:
        asked = "[What is the last word in this list: {items}|Which word is last: {items}]?"
        answer = items[-1]
    elif choice < 0.9:
        asked = "How many words are in this list: {items}?"
        # Names of countries and cities may have more than one word.
        noun = "items" if category in ("countries", "cities") else "words"
        answer = f"There are {NUMBERS[len(items)]} {noun} in the list."
    else:
        asked = "Write this list as JSON: {items}"
        answer = json.dumps(items)
    return [(expand(rng, asked, slots), answer)]


def repeat(rng: Random) -> list[Turn]:
    word = rng.choice(WORDS)
    count = rng.randint(2, 4)
    choice = rng.random()
    if choice < 0.4:
        slots = {"w": word, "n": NUMBERS[count]}
        asked = expand(rng, "[Say {w} {n} times|Repeat the word {w} {n} times][.|]", slots)
        return [(asked, " ".join([word] * count))]
    template = rng.choice(["the {k} is {a}", "my {o} is {c}", "{n} has a {c} {o}", "{n} likes the {k}"])
    slots = {
        "k": rng.choice(KINDS),
        "a": rng.choice(ADJECTIVES),
        "o": rng.choice(TOYS),
        "c": rng.choice(COLOURS),
        "n": rng.choice(PEOPLE),
    }
    sentence = capitalise(expand(rng, template, slots)) + "."
    if choice < 0.8:
        return [(expand(rng, "[Repeat after me: |Say this: |Repeat: ]") + sentence, sentence)]
    return [("Say this in uppercase: " + sentence, sentence.upper())]


def make_sentence(rng: Random) -> list[Turn]:
    word = rng.choice(KINDS + TOYS)
    slots = {
        "k": word,
        "ak": with_article(word),
        "col": rng.choice(COLOURS),
        "a": rng.choice(ADJECTIVES),
        "n": rng.choice(PEOPLE),
        "s": rng.choice(SPOTS),
        "w": rng.choice(WEATHER),
    }
    asked = expand(
        rng,
        "[Make a sentence with the word {k}|Write a sentence about {ak}|Use {k} in a sentence|"
        "Write one sentence about {ak}][.|]",
        slots,
    )
    quality = "pretty" if word in TOYS else "{a}"
    answer = rng.choice(
        [
            "{n} saw {ak} {s}.",
            "The {k} was {col} and very " + quality + ".",
            "One {w} day, {n} found {ak} {s}.",
            "There is {ak} {s}.",
        ]
    )
    return [(asked, expand(rng, answer, slots))]


def remember(rng: Random) -> list[Turn]:
    """Something the user says about themselves and asks for later."""
    name = rng.choice(PEOPLE)
    thing, value = rng.choice(
        [
            ("favourite colour", rng.choice(COLOURS)),
            ("favourite animal", rng.choice(KINDS)),
            ("favourite food", rng.choice(FOODS)),
            ("name", name),
            ("cat's name", rng.choice(PETS)),
            ("dog's name", rng.choice(PETS)),
            ("city", rng.choice(list(CAPITALS.values()))),
        ]
    )
    answer = f"I will remember that your {thing} is {value}."
    if thing == "name":
        answer = expand(rng, f"[Nice to meet you, {name}!|Hello, {name}! How can I help you?]")
    turns = [(f"My {thing} is {value}.", answer)]
    if rng.random() < 0.5:
        turns.append(simple_fact(rng))
    asked = "[What is my {k}|Do you remember my {k}|What did I say my {k} is]?"
    turns.append((expand(rng, asked, {"k": thing}), f"Your {thing} is {value}."))
    return turns


def story_sum(rng: Random) -> list[Turn]:
    """A calculation in the form of a small story."""
    n, m = rng.randint(1, 12), rng.randint(1, 9)
    person = rng.choice(PEOPLE)
    things = rng.choice(COUNTABLE)
    if rng.random() < 0.5 or n < m:
        asked = f"{person} has {n} {things} and gets {m} more. How many {things} does {person} have now?"
        return [(asked, f"{n} + {m} = {n + m}, so {person} has {n + m} {things}.")]
    asked = f"{person} has {n} {things} and gives away {m}. How many {things} are left?"
    return [(asked, f"{n} - {m} = {n - m}, so there are {n - m} {things} left.")]


def count_up(rng: Random) -> list[Turn]:
    first, last = rng.randint(1, 5), rng.randint(6, 12)
    asked = expand(rng, f"[Count from {first} to {last}|count from {first} to {last}][.|]")
    return [(asked, ", ".join(map(str, range(first, last + 1))))]


# Each task is drawn below its bound and above the one before.
TASKS: tuple[tuple[float, Callable[[Random], list[Turn]]], ...] = (
    (0.22, name_things),
    (0.32, to_uppercase),
    (0.37, to_lowercase),
    (0.5, list_task),
    (0.6, repeat),
    (0.72, make_sentence),
    (0.82, poem_request),
    (0.9, remember),
    (0.96, story_sum),
    (1.0, count_up),
)


def task(rng: Random) -> list[Turn]:
    """One task, sometimes with a second turn that builds on it."""
    choice = rng.random()
    make = next(make for bound, make in TASKS if choice < bound)
    return make(rng)


def instruction_chat(rng: Random) -> str:
    """A conversation of one or two tasks."""
    turns = []
    for _ in range(rng.randint(1, 2)):
        turns += task(rng)
    return conversation(rng, turns, thinking=rng.random() < 0.12)


def uppercase_chat(rng: Random) -> str:
    """A conversation about writing in capital letters."""
    turns = []
    for _ in range(rng.randint(1, 4)):
        if rng.random() < 0.5:
            words = rng.choice(PHRASES)
        elif rng.random() < 0.6:
            words = rng.choice(WORDS)
        else:
            words = rng.choice(ADJECTIVES) + " " + rng.choice(KINDS)
        asked = expand(
            rng,
            '[Say {w} in uppercase|Write {w} in uppercase|Write "{w}" in capital letters|'
            'Put {w} in uppercase|Say "{w}" in uppercase|uppercase: {w}][.|]',
            {"w": words},
        )
        turns.append((asked, words.upper()))
    return conversation(rng, turns)


def list_chat(rng: Random) -> str:
    """A conversation of lists, half of them reversed afterwards."""
    turns = []
    for _ in range(rng.randint(1, 3)):
        category, items, count = draw_list(rng)
        is_list = rng.random() < 0.6
        asked = "[Name {w} {k}|Give me {w} {k}|Tell me {w} {k}][.|]"
        if is_list:
            asked = "[List {w} {k}|list {w} {k}|Write a list of {w} {k}][.|]"
        turns.append((expand(rng, asked, {"w": count, "k": category}), as_text(items, is_list)))
        if rng.random() < 0.5:
            turns.append((rng.choice(REVERSE), as_text(items[::-1], is_list)))
    return conversation(rng, turns)
