"""What every measurement works on: the exported model, the held-out documents, the reference prompts."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from ..architecture import CONFIG
from ..network import Network
from ..tokenizer import split_documents
from ..weights import load_float

BATCH = 16


@dataclass(frozen=True)
class Setup:
    """Paths; everything else is read when it is first needed."""

    model: Path
    heldout: Path
    prompts: Path

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_file(str(self.model / "tokenizer.json"))

    @cached_property
    def documents(self) -> list[torch.Tensor]:
        """Ids of the held-out documents."""
        texts = split_documents(self.heldout.read_text(encoding="utf-8"))
        encodings = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        return [torch.tensor(encoding.ids) for encoding in encodings]

    @cached_property
    def joined(self) -> torch.Tensor:
        """All held-out documents as one long context."""
        return torch.cat(self.documents)

    def network(self, change: Callable[[str, torch.Tensor], torch.Tensor] | None = None) -> Network:
        """The model in float32, with `change` applied to every tensor."""
        return Network(CONFIG, *load_float(self.model, change))

    def references(self) -> Iterator[tuple[list[int], list[int]]]:
        """Prompt ids and greedy ids of every turn of the reference continuations."""
        for prompt in json.loads(self.prompts.read_text(encoding="utf-8")):
            for turn in prompt["turns"]:
                yield turn["prompt_ids"], turn["greedy_ids"]

    def kind(self, document: torch.Tensor) -> str:
        """Rough kind of a document: tools, chat or plain text."""
        ids = set(document.tolist())
        marks = {text: self.tokenizer.token_to_id(text) in ids for text in MARKS}
        if marks["<tool_call>"] or marks["<tool_response>"]:
            return "tools"
        return "chat" if marks["<|user|>"] else "text"


MARKS = ("<tool_call>", "<tool_response>", "<|user|>")
Result = dict[str, Any]


def batches(documents: list[torch.Tensor]) -> Iterator[tuple[list[int], torch.Tensor, torch.Tensor]]:
    """Document numbers, padded ids [B, L] and the mask of real tokens, documents of like length together."""
    order = sorted(range(len(documents)), key=lambda number: len(documents[number]))
    for start in range(0, len(order), BATCH):
        numbers = order[start : start + BATCH]
        length = max(len(documents[number]) for number in numbers)
        ids = torch.zeros(len(numbers), length, dtype=torch.long)
        mask = torch.zeros(len(numbers), length, dtype=torch.bool)
        for row, number in enumerate(numbers):
            ids[row, : len(documents[number])] = documents[number]
            mask[row, : len(documents[number])] = True
        yield numbers, ids, mask
