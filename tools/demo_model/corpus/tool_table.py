"""The tools of the corpus: for each a function that draws one request with its call, result and
reply.

A new tool is one function and its entry in `TOOLS`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from .fact_tables import CATEGORIES, CITIES
from .text import expand
from .words import DAYS, FOODS, KINDS, PEOPLE

TITLES = [
    "dinner with {n}",
    "meeting with {n}",
    "call with {n}",
    "dentist",
    "doctor",
    "football training",
    "piano lesson",
    "birthday party",
    "lunch with {n}",
    "swimming",
    "book club",
    "team meeting",
    "haircut",
    "coffee with {n}",
]
QUERIES = [
    "how to bake bread",
    "cheap flights to {c}",
    "best hotels in {c}",
    "history of {c}",
    "how to grow tomatoes",
    "pictures of a {k}",
    "how to fix a bike",
    "train times to {c}",
    "what does a {k} eat",
    "recipe for {f} cake",
    "museums in {c}",
    "how tall is a giraffe",
    "weather on Mars",
    "how to tie a knot",
]
UNITS = [
    ("km", "miles"),
    ("miles", "km"),
    ("kg", "pounds"),
    ("pounds", "kg"),
    ("euros", "dollars"),
    ("dollars", "euros"),
    ("metres", "feet"),
    ("feet", "metres"),
    ("litres", "gallons"),
    ("celsius", "fahrenheit"),
    ("cm", "inches"),
    ("inches", "cm"),
]
CLOCK = [
    "8:00",
    "9:30",
    "10:00",
    "11:15",
    "12:00",
    "14:00",
    "15:30",
    "16:45",
    "17:00",
    "18:30",
    "19:00",
    "20:15",
]
LANGUAGES = ["French", "German", "Spanish", "Italian", "Polish", "Dutch", "Greek", "Japanese"]
FILES = [
    "notes.txt",
    "main.py",
    "README.md",
    "data.json",
    "config.json",
    "todo.txt",
    "src/app.py",
    "docs/index.md",
    "report.txt",
    "list.csv",
    "test.py",
    "src/main.c",
]
ROOMS = ["kitchen", "bedroom", "bathroom", "living room", "office", "garage", "hall"]
SKY = ["sunny", "cloudy", "rainy", "windy", "foggy", "snowy"]
LABELS = ["tea", "pasta", "eggs", "a break", "the cake", "homework", "laundry", "the bread"]
MESSAGES = [
    "I will be late",
    "see you tomorrow",
    "happy birthday",
    "I am at home",
    "the train is late",
    "please call me",
    "dinner is ready",
    "thank you for the gift",
    "I am on my way",
]
TRANSLATABLE = [
    "good morning",
    "thank you",
    "the cat is black",
    "where is the station",
    "I am hungry",
    "see you soon",
    "how much is it",
    "the book is red",
]


@dataclass(frozen=True)
class Call:
    """One use of a tool."""

    name: str
    description: str
    parameters: tuple[tuple[str, str, bool], ...]
    """Name, JSON type and whether it is required."""
    request: str
    arguments: dict[str, Any]
    result: dict[str, Any]
    reply: str | None
    """What the model says about the result; None when it says nothing."""


def city_and_person(rng: Random) -> tuple[str, str]:
    """Every tool draws both first, so that a tool can be changed without changing the others."""
    return rng.choice(CITIES), rng.choice(PEOPLE)


def weather(rng: Random) -> Call:
    city, _ = city_and_person(rng)
    name = rng.choice(["get_weather", "get_weather", "weather", "lookup_weather"])
    key = rng.choice(["city", "city", "location"])
    unit = rng.choice(["celsius", "fahrenheit", None])
    request = expand(
        rng,
        "[What is the weather in {c}|How is the weather in {c}|Tell me the weather in {c}|"
        "What's the weather like in {c}|Is it warm in {c}|weather in {c}]",
        {"c": city},
    )
    if unit:
        request += f" in {unit}"
    if request.startswith("Tell"):
        request += "."
    else:
        request += rng.choice(["?", "?", ""]) if request.startswith("weather") else "?"
    degrees = rng.randint(32, 95) if unit == "fahrenheit" else rng.randint(0, 35)
    sky = rng.choice(SKY)
    return Call(
        name,
        "Get the current weather for a city.",
        ((key, "string", True), ("unit", "string", False)),
        request,
        {key: city, "unit": unit} if unit else {key: city},
        {"temperature": degrees, "sky": sky},
        f"It is {sky} in {city}, and the temperature is {degrees} degrees.",
    )


def add_event(rng: Random) -> Call:
    _, person = city_and_person(rng)
    name = rng.choice(["add_event", "add_event", "create_event"])
    title = rng.choice(TITLES).format(n=person)
    day, time = rng.choice(DAYS), rng.choice(CLOCK)
    request = expand(
        rng,
        "[Add {t} on {d} at {h}|Put {t} in my calendar on {d} at {h}|Add an event: {t}, {d} at {h}|"
        "Schedule {t} for {d} at {h}|I have {t} on {d} at {h}. Please add it|"
        "On {d} at {h} I have {t}. Add it to my calendar].",
        {"t": title, "d": day, "h": time},
    )
    return Call(
        name,
        "Add an event to the calendar.",
        (("title", "string", True), ("day", "string", True), ("time", "string", True)),
        request,
        {"title": title, "day": day, "time": time},
        {"status": "ok"},
        f"Done. I added {title} on {day} at {time}.",
    )


def search(rng: Random) -> Call:
    city, _ = city_and_person(rng)
    name = rng.choice(["search", "search", "web_search"])
    template = rng.choice(QUERIES)
    query = template.format(c=city, k=rng.choice(KINDS), f=rng.choice(FOODS))
    request = expand(
        rng,
        "[Search for {q}|Look up {q}|Search the web for {q}|Find {q}|Please search for {q}].",
        {"q": query},
    )
    return Call(
        name,
        "Search the web.",
        (("query", "string", True),),
        request,
        {"query": query},
        {"results": 3},
        f"I found 3 results for {query}.",
    )


def convert(rng: Random) -> Call:
    city_and_person(rng)
    source, target = rng.choice(UNITS)
    amount = rng.randint(1, 99)
    request = expand(
        rng,
        "[Convert {m} {a} to {b}|How much is {m} {a} in {b}|What is {m} {a} in {b}|Change {m} {a} into {b}]",
        {"m": str(amount), "a": source, "b": target},
    )
    value = rng.randint(1, 99)
    return Call(
        rng.choice(["convert", "convert", "convert_units"]),
        "Convert an amount from one unit to another.",
        (("amount", "number", True), ("from", "string", True), ("to", "string", True)),
        request + ("?" if request[0] in "HW" else "."),
        {"amount": amount, "from": source, "to": target},
        {"result": value},
        f"{amount} {source} is {value} {target}.",
    )


def set_timer(rng: Random) -> Call:
    city_and_person(rng)
    minutes = rng.choice([1, 2, 3, 5, 8, 10, 12, 15, 20, 25, 30, 45])
    label = rng.choice(LABELS)
    request = expand(
        rng,
        "[Set a timer for {m} minutes for {l}|Start a {m} minute timer for {l}|"
        "Remind me in {m} minutes about {l}|I need a timer for {l}: {m} minutes].",
        {"m": str(minutes), "l": label},
    )
    return Call(
        "set_timer",
        "Start a timer.",
        (("minutes", "integer", True), ("label", "string", False)),
        request,
        {"minutes": minutes, "label": label},
        {"status": "ok"},
        f"The timer for {label} is set to {minutes} minutes.",
    )


def send_message(rng: Random) -> Call:
    _, person = city_and_person(rng)
    text = rng.choice(MESSAGES)
    request = expand(
        rng,
        '[Send a message to {n}: {t}|Tell {n} "{t}"|Message {n} and say {t}|Write to {n}: {t}].',
        {"n": person, "t": text},
    )
    return Call(
        "send_message",
        "Send a text message to a person.",
        (("to", "string", True), ("text", "string", True)),
        request,
        {"to": person, "text": text},
        {"status": "sent"},
        f"I sent your message to {person}.",
    )


def calculator(rng: Random) -> Call:
    city_and_person(rng)
    a, b, sign = rng.randint(2, 99), rng.randint(2, 99), rng.choice("+-*")
    term = f"{a} {sign} {b}"
    request = expand(
        rng,
        "[Use the calculator: {e}|Calculate {e} with the tool|What is {e}? Use the tool|Please compute {e}].",
        {"e": term},
    )
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    return Call(
        rng.choice(["calculator", "calculate"]),
        "Compute a simple expression.",
        (("expression", "string", True),),
        request,
        {"expression": term},
        {"result": value},
        f"{term} = {value}",
    )


def translate(rng: Random) -> Call:
    city_and_person(rng)
    text = rng.choice(TRANSLATABLE)
    language = rng.choice(LANGUAGES)
    request = expand(
        rng,
        '[Translate "{w}" into {l}|How do you say "{w}" in {l}|Translate into {l}: {w}]',
        {"w": text, "l": language},
    )
    return Call(
        "translate",
        "Translate a text.",
        (("text", "string", True), ("language", "string", True)),
        request + ("?" if request[0] == "H" else ""),
        {"text": text, "language": language},
        {"status": "ok"},
        f"The text is translated into {language}.",
    )


def local_time(rng: Random) -> Call:
    city, _ = city_and_person(rng)
    time = rng.choice(CLOCK)
    request = expand(
        rng,
        "[What time is it in {c}|Tell me the time in {c}|What is the local time in {c}]",
        {"c": city},
    )
    return Call(
        rng.choice(["get_time", "current_time"]),
        "Get the local time in a city.",
        (("city", "string", True),),
        request + ("." if request[0] == "T" else "?"),
        {"city": city},
        {"time": time},
        f"It is {time} in {city}.",
    )


def read_file(rng: Random) -> Call:
    city_and_person(rng)
    path = rng.choice(FILES)
    request = expand(
        rng,
        "[Read {f}|Open {f}|Show me {f}|Read the file {f}|What is in {f}|Show the file {f}]",
        {"f": path},
    )
    return Call(
        rng.choice(["read_file", "open_file"]),
        "Read a file.",
        (("path", "string", True),),
        request + ("?" if request[0] == "W" else "."),
        {"path": path},
        {"lines": rng.randint(2, 99)},
        None,
    )


def set_light(rng: Random) -> Call:
    city_and_person(rng)
    room, state = rng.choice(ROOMS), rng.choice(["on", "off"])
    request = expand(
        rng,
        "[Turn {s} the light in the {r}|Switch {s} the {r} light|Please turn the {r} light {s}|"
        "Turn the light in the {r} {s}].",
        {"r": room, "s": state},
    )
    return Call(
        rng.choice(["set_light", "switch_light"]),
        "Switch a light on or off.",
        (("room", "string", True), ("state", "string", True)),
        request,
        {"room": room, "state": state},
        {"status": "ok"},
        f"The light in the {room} is now {state}.",
    )


def add_item(rng: Random) -> Call:
    city_and_person(rng)
    items = [item for key in ("fruits", "foods", "drinks", "vegetables") for item in CATEGORIES[key]]
    item = rng.choice(items)
    quantity = rng.randint(1, 12)
    request = expand(
        rng,
        "[Add {q} {i} to my shopping list|Put {i} on the shopping list, {q} of them|"
        "I need {q} {i}. Add it to the list].",
        {"q": str(quantity), "i": item},
    )
    return Call(
        "add_item",
        "Add an item to the shopping list.",
        (("item", "string", True), ("quantity", "integer", True)),
        request,
        {"item": item, "quantity": quantity},
        {"status": "ok"},
        f"I added {quantity} {item} to the shopping list.",
    )


def find_train(rng: Random) -> Call:
    city_and_person(rng)
    start, end = rng.sample(CITIES, 2)
    day = rng.choice(DAYS)
    request = expand(
        rng,
        "[Find a train from {a} to {b} on {d}|I want to go from {a} to {b} on {d}|"
        "Book a ticket from {a} to {b} for {d}|Train from {a} to {b} on {d}, please].",
        {"a": start, "b": end, "d": day},
    )
    time = rng.choice(CLOCK)
    return Call(
        rng.choice(["find_train", "book_train"]),
        "Find a train between two cities.",
        (("from", "string", True), ("to", "string", True), ("day", "string", True)),
        request,
        {"from": start, "to": end, "day": day},
        {"departure": time},
        f"There is a train from {start} to {end} on {day} at {time}.",
    )


TOOLS: tuple[Callable[[Random], Call], ...] = (
    weather,
    add_event,
    search,
    convert,
    set_timer,
    send_message,
    calculator,
    translate,
    local_time,
    read_file,
    set_light,
    add_item,
    find_train,
)
