"""Small Python functions, Markdown lists and tables, JSON blocks."""

import json
from random import Random

from .conversation import conversation, plain_text
from .fact_tables import CATEGORIES
from .text import capitalise, expand, run_of
from .words import PEOPLE

# What a function does, and its source.
FUNCTIONS = [
    (
        "adds two numbers",
        "def add(a, b):\n    return a + b",
    ),
    (
        "sums a list",
        "def total(items):\n"
        "    result = 0\n"
        "    for item in items:\n"
        "        result += item\n"
        "    return result",
    ),
    (
        "doubles a number",
        "def double(x):\n    return 2 * x",
    ),
    (
        "checks if a number is even",
        "def is_even(n):\n    return n % 2 == 0",
    ),
    (
        "finds the largest number in a list",
        "def largest(items):\n"
        "    best = items[0]\n"
        "    for item in items:\n"
        "        if item > best:\n"
        "            best = item\n"
        "    return best",
    ),
    (
        "greets a person",
        'def greet(name):\n    print("Hello, " + name + "!")',
    ),
    (
        "counts to n",
        "def count_to(n):\n    for i in range(1, n + 1):\n        print(i)",
    ),
    (
        "squares a number",
        "def square(x):\n    return x * x",
    ),
    (
        "finds the smaller of two numbers",
        "def minimum(a, b):\n    if a < b:\n        return a\n    return b",
    ),
    (
        "reverses a text",
        "def reverse_text(text):\n    return text[::-1]",
    ),
    (
        "prints hello",
        'def say_hello():\n    print("Hello!")',
    ),
    (
        "computes the average of a list",
        "def average(items):\n    return sum(items) / len(items)",
    ),
]
LIST_CATEGORIES = ["fruits", "vegetables", "drinks", "foods", "clothes", "tools", "toys"]


def function_chat(rng: Random) -> str:
    """A request for a Python function."""
    # The first draw decides nothing; without it every seed would give another corpus.
    rng.randrange(5)
    purpose, source = rng.choice(FUNCTIONS)
    asked = expand(
        rng,
        "[Write a Python function that {d}|Give me Python code that {d}|Write code that {d}|"
        "How do I write a Python function that {d}]",
        {"d": purpose},
    )
    asked += "?" if asked.startswith("H") else rng.choice([".", ""])
    return conversation(rng, [(asked, f"```python\n{source}\n```")])


def markdown_list(rng: Random) -> str:
    """A Markdown list, asked for or as a plain document."""
    category = rng.choice(LIST_CATEGORIES)
    items = run_of(rng, CATEGORIES[category], rng.randint(3, 5))
    title = rng.choice(["Shopping list", "My list", "Things to buy", capitalise(category)])
    body = f"# {title}\n\n" + "\n".join(f"- {item}" for item in items) + "\n"
    if rng.random() < 0.5:
        asked = f"Write a markdown list with the title {title}: {', '.join(items)}"
        return conversation(rng, [(asked, body.rstrip())])
    return plain_text(body)


def markdown_table(rng: Random) -> str:
    """A table of names and ages."""
    rows = [(rng.choice(PEOPLE), rng.randint(5, 90)) for _ in range(rng.randint(2, 4))]
    asked = "Write a markdown table with name and age: "
    asked += ", ".join(f"{name} {age}" for name, age in rows)
    lines = ["| name | age |", "| --- | --- |", *(f"| {name} | {age} |" for name, age in rows)]
    return conversation(rng, [(asked, "\n".join(lines))])


def json_block(rng: Random) -> str:
    """A plain document with a JSON block."""
    title = rng.choice(["notes", "config", "person", "list"])
    content = {
        "name": rng.choice(PEOPLE),
        "age": rng.randint(5, 90),
        "likes": rng.sample(CATEGORIES["fruits"], 2),
    }
    return plain_text(f"# {capitalise(title)}\n\n```json\n{json.dumps(content)}\n```\n")


def code_document(rng: Random) -> str:
    """One of the four."""
    choice = rng.random()
    if choice < 0.45:
        return function_chat(rng)
    if choice < 0.7:
        return markdown_list(rng)
    return markdown_table(rng) if choice < 0.85 else json_block(rng)
