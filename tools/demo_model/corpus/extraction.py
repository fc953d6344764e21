"""Sentences and the JSON objects that hold what they say."""

import json
from random import Random
from typing import Any

from .conversation import conversation
from .fact_tables import CITIES
from .text import capitalise, with_article
from .words import ADJECTIVES, COLOURS, KINDS, PEOPLE, PETS, TOYS


def draw_statement(rng: Random) -> tuple[str, dict[str, Any], str]:
    """A sentence, its content, and the names of the keys."""
    name = rng.choice(PEOPLE)
    city = rng.choice(CITIES)
    choice = rng.random()
    if choice < 0.4:
        age = rng.randint(3, 90)
        person = {"name": name, "age": age}
        resident = {**person, "city": city}
        return rng.choice(
            [
                (f"{name} is {age} years old and lives in {city}.", resident, "name, age and city"),
                (f"{name} lives in {city} and is {age} years old.", resident, "name, age and city"),
                (f"My name is {name}. I am {age} years old.", person, "name and age"),
            ]
        )
    if choice < 0.7:
        item, colour, price = rng.choice(TOYS), rng.choice(COLOURS), rng.randint(1, 99)
        offer = {"item": item, "colour": colour, "price": price}
        text = rng.choice(
            [
                f"The {colour} {item} costs {price} euros.",
                f"{capitalise(with_article(colour))} {item} for {price} euros.",
            ]
        )
        return text, offer, "item, colour and price"
    kind, adjective = rng.choice(KINDS), rng.choice(ADJECTIVES)
    pet = rng.choice(PETS)
    content = {"name": pet, "kind": kind, "adjective": adjective}
    return f"{pet} is {with_article(adjective)} {kind}.", content, "name, kind and adjective"


def extraction_chat(rng: Random) -> str:
    """A request to write a sentence as JSON."""
    text, content, keys = draw_statement(rng)
    asked = rng.choice(
        [
            f"Extract {keys} as JSON: {text}",
            f"{text} Write {keys} as JSON.",
            f"Answer in JSON with {keys}. {text}",
            f"Text: {text}\nGive me {keys} in JSON.",
        ]
    )
    system = rng.choice([None, None, None, "Answer in JSON."])
    return conversation(rng, [(asked, json.dumps(content))], system=system)
