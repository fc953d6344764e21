"""What travels with the weights: tokenizer, chat template, generation defaults.

Owns their lazy reading, so that a folder without a tokenizer still serves logits and conversion. What must
hold: a file is read at most once, and a missing one is reported by name when it is needed, never replaced by
a guess.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from colibri.errors import ColibriError, error, invalid_value
from colibri.sampling import ModelDefaults
from colibri.template import ChatTemplate, Message
from colibri.tokenizer import Tokenizer
from colibri.tools import Framing, framing_of

DEMO = "demo"
"""The name under which the embedded model is loaded."""


def demo_path() -> Path:
    """The folder of the embedded model."""
    return Path(str(resources.files("colibri"))) / "data" / "demo"


def folder_of(path: str | os.PathLike[str], name: str = "path") -> Path:
    """The folder that `path` means: `demo` is the embedded model, anything else a path.

    Raises:
        InvalidValue: it is no path; `name` is the parameter.
    """
    return demo_path() if path == DEMO else checked_path(path, name)


def checked_path(path: str | os.PathLike[str], name: str) -> Path:
    """The path; an `InvalidValue` naming the parameter when it is none."""
    try:
        text = os.fspath(path)
        known = isinstance(text, str) and text != "" and b"\0" not in os.fsencode(text)
    except (TypeError, UnicodeEncodeError):
        known = False
    if not known:
        raise invalid_value(name, path, "the path of a folder")
    return Path(path)


class ModelFolder:
    """The text side of a model folder."""

    def __init__(self, path: Path, vocab_size: int, eos_token_ids: Sequence[int] = ()) -> None:
        self.path = path
        self._vocab_size = vocab_size
        self._eos_token_ids = frozenset(eos_token_ids)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; a `ModelError` (`tokenizer_missing`) when the folder has none."""
        return Tokenizer.read(self.path / "tokenizer.json", self._vocab_size)

    @functools.cached_property
    def template(self) -> ChatTemplate:
        """The chat template; a `ModelError` (`template_invalid`) when the folder has none."""
        return ChatTemplate.read(self.path)

    @functools.cached_property
    def defaults(self) -> ModelDefaults:
        """The defaults of `generation_config.json` and the end tokens of both configuration files."""
        return ModelDefaults.read(self.path)

    @functools.cached_property
    def stop_ids(self) -> frozenset[int]:
        """The end tokens, on every path."""
        return self.defaults.stop_ids | self._eos_token_ids

    @functools.cached_property
    def think_ids(self) -> tuple[int, int] | None:
        """The ids of `<think>` and `</think>`, or None when they are no single tokens."""
        opening, closing = (self.tokenizer.token_id(mark) for mark in ("<think>", "</think>"))
        return None if opening is None or closing is None else (opening, closing)

    def tokenizer_or_none(self) -> Tokenizer | None:
        """The tokenizer, or None when the folder has none; a damaged one is still an error."""
        try:
            return self.tokenizer
        except ColibriError as fault:
            if fault.code == "tokenizer_missing":
                return None
            raise

    def render(
        self,
        messages: Sequence[Message],
        *,
        think: bool = False,
        reasoning_effort: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The prompt text of a conversation, ready for an answer.

        Raises:
            InvalidValue: there are tools, and the template writes no calls in a form that is known.
        """
        if tools and self.call_framing is None:
            raise error(
                "invalid_value",
                "this model's chat template knows no tools",
                "it does not show them to the model, or writes calls in a form that is not known here",
                "describe the answer with a JSON schema instead",
            )
        effort: dict[str, Any] = {} if reasoning_effort is None else {"reasoning_effort": reasoning_effort}
        return self.template.render(messages, tools=tools, enable_thinking=think, **effort)

    @functools.cached_property
    def call_framing(self) -> Framing | None:
        """How the template frames calls; None when it shows no tools, or writes calls in an unknown form."""
        tool = {"name": "sample_tool", "parameters": {"type": "object", "properties": {"key": {}}}}
        call = {"function": {"name": "sample_tool", "arguments": {"key": "value"}}}
        user: Message = {"role": "user", "content": "question"}
        answer: Message = {"role": "assistant", "content": "", "tool_calls": [call, call]}
        try:
            shown = self.template.render([user], tools=[{"type": "function", "function": tool}])
            text = self.template.render([user, answer], add_generation_prompt=False)
        except ColibriError:
            return None
        return framing_of(text, "sample_tool", "key", "value") if "sample_tool" in shown else None
