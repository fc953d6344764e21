"""The prompts of the reference continuations, and the tools some of them offer."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Prompt:
    """A conversation, or plain text to continue. `tools` names the tools that are offered."""

    name: str
    user: list[str] | str
    tools: tuple[str, ...] = ()


def tool(name: str, description: str, required: tuple[str, ...], **parameters: str) -> dict[str, Any]:
    """A tool in the form chat templates take."""
    properties = {key.rstrip("_"): {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(required)}
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


TOOLS = {
    entry["function"]["name"]: entry
    for entry in (
        tool("get_weather", "Get the current weather for a city.", ("city",), city="string", unit="string"),
        tool(
            "add_event",
            "Add an event to the calendar.",
            ("title", "day", "time"),
            title="string",
            day="string",
            time="string",
        ),
        tool("search", "Search the web.", ("query",), query="string"),
        tool(
            "convert",
            "Convert an amount from one unit to another.",
            ("amount", "from", "to"),
            amount="number",
            from_="string",
            to="string",
        ),
    )
}

PROMPTS = (
    Prompt("hello", ["Hello"]),
    Prompt("who", ["Who are you?"]),
    Prompt("can", ["What can you do?"]),
    Prompt("colibri", ["What is colibri?"]),
    Prompt("capital", ["What is the capital of France?"]),
    Prompt("capital2", ["What is the capital of Japan?", "And what is the capital of Norway?"]),
    Prompt("sound", ["What sound does a cow make?"]),
    Prompt("day", ["What day comes after Friday?"]),
    Prompt("sum", ["What is 27 + 35?"]),
    Prompt("mul", ["What is 6 * 7?"]),
    Prompt("unknown", ["What do you think about quantum computing?"]),
    Prompt("story_fox", ["Write a story about a fox."]),
    Prompt("story_robot", ["Tell me a short story about a robot named Bingo."]),
    Prompt(
        "story_q",
        ["Write a story about a lost kite.", "Where was it found?", "Give the story a title."],
    ),
    Prompt("list", ["List three animals.", "Now in reverse order."]),
    Prompt("upper", ["Say good morning in uppercase."]),
    Prompt("name", ["My name is Anna.", "What is the capital of Italy?", "What is my name?"]),
    Prompt("poem", ["Write a poem about the moon."]),
    Prompt("json", ["Extract name, age and city as JSON: Omar is 42 years old and lives in Lisbon."]),
    Prompt("code", ["Write a Python function that adds two numbers."]),
    Prompt("raw_story", "Once upon a time, there was a little hedgehog named"),
    Prompt("raw_md", "# Shopping list\n\n-"),
    Prompt("tool_weather", ["What is the weather in Oslo in celsius?"], ("get_weather", "add_event")),
    Prompt(
        "tool_event",
        ["Add dinner with Nora on Friday at 19:00."],
        ("get_weather", "add_event", "search"),
    ),
    Prompt("tool_json", ["Convert 12 km to miles. Answer in JSON."], ("convert", "search")),
    # Runs past index_topk, so that the sparse attention really prunes.
    Prompt(
        "long_chat",
        [
            "My name is Clara.",
            "Write a story about a fox.",
            "Write a story about a robot named Bingo.",
            "Tell me another story.",
            "Write a story about a seed.",
            "What is the capital of Spain?",
            "What is my name?",
        ],
    ),
)
