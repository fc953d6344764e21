"""Tool calls: a system prompt with tools, requests, calls in the GLM form or as JSON, results and
replies."""

import json
from random import Random

from .conversation import ANSWER, START
from .facts import simple_fact
from .tool_table import TOOLS, Call

BLOCK_OPENINGS = [
    "# Tools\n\nYou can call these functions to help the user. Their signatures are listed in the "
    "<tools></tools> tags:\n<tools>\n",
    "\n# Tools\n\nYou can call these functions to help the user. Their signatures are listed in the "
    "<tools></tools> tags:\n<tools>\n",
    "\n# Tools\n\nThese functions are available. Call one or more of them when they help. Signatures "
    "are inside <tools></tools>:\n<tools>\n",
]
BLOCK_ENDINGS = [
    "</tools>\n\nWrite every call in this form:\n<tool_call>{function-name}\n<arg_key>{key}</arg_key>\n"
    "<arg_value>{value}</arg_value></tool_call>",
    "</tools>\n\nFor each call, write the function name and its arguments like this:\n"
    "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value>..."
    "</tool_call>",
]


def schema(call: Call) -> str:
    """The JSON schema of a tool."""
    properties = {name: {"type": kind} for name, kind, _ in call.parameters}
    required = [name for name, _, needed in call.parameters if needed]
    return json.dumps(
        {
            "name": call.name,
            "description": call.description,
            "parameters": {"type": "object", "properties": properties, "required": required},
        }
    )


def signature(call: Call) -> str:
    """name(parameter, parameter)."""
    return f"{call.name}({', '.join(name for name, _, _ in call.parameters)})"


def call_text(call: Call) -> str:
    """A call in the GLM form."""
    arguments = "".join(
        f"\n<arg_key>{key}</arg_key>\n"
        f"<arg_value>{value if isinstance(value, str) else json.dumps(value)}</arg_value>"
        for key, value in call.arguments.items()
    )
    return f"<tool_call>{call.name}{arguments}</tool_call>"


def tools_prompt(rng: Random, calls: list[Call]) -> str:
    """The tools in a system prompt: JSON schemas as the chat template renders them, or plain
    signatures."""
    choice = rng.random()
    if choice < 0.5:
        as_rendered = rng.random() < 0.6
        opening = BLOCK_OPENINGS[0] if as_rendered else rng.choice(BLOCK_OPENINGS)
        schemas = "".join(schema(call) + "\n" for call in calls)
        return opening + schemas + (BLOCK_ENDINGS[0] if as_rendered else rng.choice(BLOCK_ENDINGS))
    if choice < 0.8:
        lines = [f"- {signature(call)}: {call.description}" for call in calls]
        return "You can use these tools:\n" + "\n".join(lines)
    opening = rng.choice(["Tools: ", "You have these tools: ", "Available tools: "])
    return opening + ", ".join(signature(call) for call in calls) + "."


def draw_calls(rng: Random, count: int) -> list[Call]:
    """Calls of different tools."""
    calls: list[Call] = []
    while len(calls) < count:
        call = rng.choice(TOOLS)(rng)
        if all(call.description != other.description for other in calls):
            calls.append(call)
    return calls


def tool_chat(rng: Random) -> str:
    """A conversation with tools: one or two calls, in one of both forms."""
    calls = draw_calls(rng, rng.choice([1, 1, 2, 2, 3]))
    shown = list(calls)
    rng.shuffle(shown)
    text = START + "<|system|>" + tools_prompt(rng, shown)
    as_json = rng.random() < 0.25
    request_suffix = ""
    if as_json and rng.random() < 0.5:
        text += rng.choice(["\nAnswer in JSON.", " Answer in JSON.", "\nAnswer with a JSON object."])
    else:
        suffixes = [" Answer in JSON.", " Answer with a JSON object.", "\nAnswer in JSON."]
        request_suffix = rng.choice(suffixes)
    if rng.random() < 0.12:
        hello = ("Hello", "Hello! How can I help you?")
        asked, answer = simple_fact(rng) if rng.random() < 0.6 else hello
        text += "<|user|>" + asked + ANSWER + answer
    used = calls[:1]
    if len(calls) > 1 and rng.random() < 0.3:
        used = calls[:2]
    for call in used:
        if as_json:
            content = json.dumps({"name": call.name, "arguments": call.arguments})
            text += "<|user|>" + call.request + request_suffix + ANSWER + content
            continue
        thought = f"I will call {call.name}." if rng.random() < 0.1 else ""
        text += f"<|user|>{call.request}<|assistant|><think>{thought}</think>{call_text(call)}"
        if not call.reply or rng.random() >= 0.65:
            return text + "<|observation|>"
        result = json.dumps(call.result)
        text += f"<|observation|><tool_response>{result}</tool_response>{ANSWER}{call.reply}"
    return text + "<|user|>"
