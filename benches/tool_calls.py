"""Tool calls of the embedded model, free and under a grammar: how many are right, and what the drafts save.

    python benches/tool_calls.py [--count 200] [--seed tool-calls] [--show 0]

The prompts come from the corpus generator of the model (`tools/demo_model/corpus`) with a seed that no
training corpus used: one request with one to three tools, of which one fits. Each is answered greedily

    free         with the tools in the prompt and no grammar,
    constrained  with `tools=`, which binds every call to the schemas,
    draft        with `tools=` and `grammar_mode="draft"`: what the grammar forces is only proposed.

Ends with an error when a constrained call does not parse or validate, when constraining makes fewer calls
right, when a draft changes a token, or when less than 95 % of the drafted tokens are accepted in draft mode.
Schemas are judged by the package jsonschema-rs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import colibri
import jsonschema_rs
from colibri import ToolSet

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

from demo_model.corpus.tool_table import Call
from demo_model.corpus.tools import draw_calls, schema

MODES: dict[str, dict[str, Any] | None] = {
    "free": None,
    "constrained": {"grammar_mode": "constrain"},
    "constrained, drafts off": {"grammar_mode": "constrain", "draft": "off"},
    "draft": {"grammar_mode": "draft"},
}
ACCEPTED_AT_LEAST = 0.95
MAX_TOKENS = 160


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A request, the tools that are offered, and the call that is right."""

    request: str
    tools: tuple[dict[str, Any], ...]
    name: str
    arguments: dict[str, Any]


@dataclasses.dataclass
class Score:
    """What one mode did over all prompts.

    Attributes:
        answers: answers; begun: those that begin a call; parsed: those whose calls all parse, and name an
            offered tool; valid: those whose calls all validate too; right: those that are the one right call.
        tokens, forwards, saved, forced, proposed, accepted, seconds: sums of the statistics.
    """

    answers: int = 0
    begun: int = 0
    parsed: int = 0
    valid: int = 0
    right: int = 0
    tokens: int = 0
    forwards: int = 0
    saved: int = 0
    forced: int = 0
    proposed: int = 0
    accepted: int = 0
    seconds: float = 0.0

    def add(self, prompt: Prompt, result: colibri.Result, text: str) -> None:
        """Counts an answer; `text` is all that was written."""
        self.answers += 1
        tools = ToolSet(prompt.tools)
        head, opens, _ = text.partition("<tool_call>")
        if opens:
            self.begun += 1
            calls, left = tools.parse(text[len(head) :])
            found = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]
            parsed = bool(calls) and not left
            self.parsed += parsed
            schemas = {one["name"]: one["parameters"] for one in tools.functions(tools.names)}
            self.valid += parsed and all(
                jsonschema_rs.is_valid(schemas[name], given) for name, given in found
            )
            self.right += parsed and not head and found == [(prompt.name, prompt.arguments)]
        stats = result.stats
        self.tokens += stats.completion_tokens
        self.forwards += stats.forwards
        self.saved += stats.forwards_saved
        self.forced += stats.forced_tokens
        draft = stats.drafts["grammar"]
        self.proposed += draft.proposed
        self.accepted += draft.accepted
        self.seconds += stats.decode_s

    def row(self, name: str) -> str:
        """A row of the table."""
        share = [f"{part / self.begun:.1%}" if self.begun else "" for part in (self.parsed, self.valid)]
        drafted = f"{self.accepted}/{self.proposed} ({self.acceptance:.1%})" if self.proposed else "none"
        passes = self.forwards + self.answers
        cells = (
            name,
            f"{self.begun}/{self.answers}",
            *share,
            f"{self.right / self.answers:.1%}",
            str(self.tokens),
            str(self.forced),
            drafted,
            f"{self.saved} ({self.saved / (self.saved + self.forwards):.1%})",
            f"{(self.tokens + self.answers) / passes:.2f}",
            f"{self.seconds:.2f}",
        )
        return "| " + " | ".join(cells) + " |"

    @property
    def acceptance(self) -> float:
        """Share of the drafted tokens that were chosen."""
        return self.accepted / self.proposed if self.proposed else 1.0


def make_prompts(count: int, seed: str) -> list[Prompt]:
    """Requests with their tools; the same for the same seed."""
    return [_prompt(Random(f"{seed}-{number}")) for number in range(count)]


def _prompt(rng: Random) -> Prompt:
    calls = draw_calls(rng, rng.choice([1, 1, 2, 2, 3]))
    wanted: Call = calls[0]
    rng.shuffle(calls)
    tools = tuple({"type": "function", "function": json.loads(schema(call))} for call in calls)
    return Prompt(wanted.request, tools, wanted.name, wanted.arguments)


def answer(model: colibri.Model, prompt: Prompt, options: dict[str, Any] | None) -> colibri.Result:
    """Answers greedily; without options with the tools rendered and no grammar."""
    messages = [{"role": "user", "content": prompt.request}]
    limits: dict[str, Any] = {"temperature": 0, "max_tokens": MAX_TOKENS}
    if options is None:
        text = model.template.render(messages, tools=prompt.tools)
        return model.generate(text, raw=True, **limits)
    return model.generate(messages=messages, tools=prompt.tools, **options, **limits)


def run(
    model: colibri.Model, prompts: Sequence[Prompt], show: int = 0
) -> tuple[dict[str, Score], list[int], list[int]]:
    """Answers all prompts in all modes.

    Args:
        model: the model; prompts: what to answer; show: how many wrong answers of each mode are printed.

    Returns:
        The scores by mode; the numbers of the prompts whose answer the draft mode changed, and of those whose
        constrained answer the drafts changed.
    """
    scores = {name: Score() for name in MODES}
    changed_free, changed_bound = [], []
    for number, prompt in enumerate(prompts):
        results = {name: answer(model, prompt, options) for name, options in MODES.items()}
        for name, result in results.items():
            score, text = scores[name], model.tokenizer.decode(result.token_ids)
            before = score.right
            score.add(prompt, result, text)
            if score.right == before and score.answers - score.right <= show:
                print(f"{name}, {number}: {prompt.request!r}\n  {prompt.name} {prompt.arguments}\n  {text!r}")
        ends = {name: (result.token_ids, result.stop_token) for name, result in results.items()}
        if ends["draft"] != ends["free"]:
            changed_free.append(number)
        if ends["constrained"] != ends["constrained, drafts off"]:
            changed_bound.append(number)
    return scores, changed_free, changed_bound


def faults(scores: dict[str, Score], changed_free: Sequence[int], changed_bound: Sequence[int]) -> list[str]:
    """What does not hold."""
    free, bound, draft = scores["free"], scores["constrained"], scores["draft"]
    checks = {
        "a constrained call does not parse": bound.parsed == bound.begun > 0,
        "a constrained call does not validate": bound.valid == bound.begun,
        "fewer calls are right under the grammar": bound.right >= free.right,
        f"draft mode changed the answers to {list(changed_free)}": not changed_free,
        f"drafts changed the constrained answers to {list(changed_bound)}": not changed_bound,
        "forced spans are refused too often in draft mode": draft.acceptance >= ACCEPTED_AT_LEAST,
        "nothing was drafted": draft.proposed > 0 and bound.proposed > 0,
    }
    return [text for text, holds in checks.items() if not holds]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", default="tool-calls")
    parser.add_argument("--show", type=int, default=0, help="wrong answers of each mode to print")
    options = parser.parse_args()
    with colibri.load("demo") as model:
        scores, *changed = run(model, make_prompts(options.count, options.seed), options.show)
    print(
        "| mode | answers with calls | parse | valid | exactly right | tokens | forced | drafts accepted "
        "| forwards saved | tokens a forward | decoding, s |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for name, score in scores.items():
        print(score.row(name))
    found = faults(scores, *changed)
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
