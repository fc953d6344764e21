"""Training rows from a corpus: every row starts at a document start and is filled with whole documents,
cut at its end. Sometimes chats are merged into one long chat.

    python -m demo_model.training.packing CORPUS.jsonl tokenizer.json rows.npz --plan first
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from ..tokenizer import DOCUMENT_START, encode_documents, read_corpus

# A row holds three tokens more than its length: targets of the next token and of two drafts.
EXTRA = 3
POOL = 48
SMALLEST_POOL = 8
TIGHT = 300
BEST_FIT_SHARE = 0.6
SYSTEM_START = DOCUMENT_START + "<|system|>"
USER_START = DOCUMENT_START + "<|user|>"


@dataclass(frozen=True)
class Part:
    """Rows of one length: their share of the documents, and how often chats are merged."""

    length: int
    share: float
    merge: float


# The second stage continues with longer rows. Its few short rows only complete the file: the progress at
# which it starts is past the phase that uses them.
PLANS = {
    "first": (Part(256, 0.5, 0.1), Part(512, 0.36, 0.35), Part(1024, 0.14, 0.6)),
    "second": (Part(512, 0.58, 0.3), Part(1024, 0.42, 0.6)),
}
SHORT_ROWS = 64


@dataclass(frozen=True)
class Document:
    """Ids of a document, whether it can continue a chat, and whether a chat can go on after it."""

    ids: np.ndarray
    continues: bool
    can_go_on: bool


def load_documents(corpus: Path, tokenizer: Tokenizer) -> list[Document]:
    """Encodes a corpus."""
    texts = list(read_corpus(corpus))
    ids, lengths = encode_documents(tokenizer, texts)
    ends = np.cumsum(lengths)
    return [
        Document(ids[end - length : end], text.startswith(USER_START), can_go_on(text))
        for text, length, end in zip(texts, lengths, ends, strict=True)
    ]


def can_go_on(text: str) -> bool:
    """Whether another chat may follow: the document ends with the user's turn, and its system prompt asks
    for no form that other answers do not have."""
    system = text.removeprefix(SYSTEM_START).split("<|user|>")[0] if text.startswith(SYSTEM_START) else ""
    return text.endswith("<|user|>") and "JSON" not in system and "capital" not in system


class Packer:
    """Fills rows from a small pool of documents."""

    def __init__(self, documents: Iterator[Document], length: int, merge: float, rng: np.random.Generator):
        self.documents = documents
        self.length = length
        self.merge = merge
        self.rng = rng
        self.pool: list[Document] = []
        self.refill()

    def refill(self) -> None:
        """Tops up the pool."""
        while len(self.pool) < POOL:
            document = next(self.documents, None)
            if document is None:
                return
            self.pool.append(document)

    def take(self, space: int) -> Document:
        """A document that fits, often the largest such one near the end of a row; any one if none fits."""
        fitting = [i for i, document in enumerate(self.pool) if len(document.ids) <= space]
        if fitting and space < TIGHT and self.rng.random() < BEST_FIT_SHARE:
            index = max(fitting, key=lambda i: len(self.pool[i].ids))
        elif fitting:
            index = fitting[self.rng.integers(len(fitting))]
        else:
            index = int(self.rng.integers(len(self.pool)))
        return self.pool.pop(index)

    def row(self) -> np.ndarray | None:
        """One row, or None when the pool ran out before it was full."""
        parts: list[np.ndarray] = []
        count, open_chat = 0, False
        while count < self.length and self.pool:
            document = self.take(self.length - count)
            ids = document.ids
            if open_chat and document.continues and self.rng.random() < self.merge:
                # Drop the closing <|user|> of the chat before and the [gMASK]<sop> of this one.
                parts[-1] = parts[-1][:-1]
                count -= 1
                ids = ids[2:]
            parts.append(ids)
            count += len(ids)
            open_chat = document.can_go_on
            self.refill()
        return np.concatenate(parts)[: self.length] if count >= self.length else None

    def rows(self) -> np.ndarray:
        """All rows [rows, length]."""
        rows = []
        while len(self.pool) > SMALLEST_POOL:
            row = self.row()
            if row is not None:
                rows.append(row)
        if not rows:
            raise ValueError(f"the corpus is too small for rows of {self.length} tokens")
        return np.stack(rows).astype(np.int16)


def pack(documents: list[Document], plan: str, seed: int) -> dict[str, np.ndarray]:
    """Rows of every length of a plan."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(documents))
    rows: dict[str, np.ndarray] = {}
    ends = [int(share * len(order)) for share in accumulate(part.share for part in PLANS[plan])]
    for part, start, end in zip(PLANS[plan], [0, *ends], [*ends[:-1], len(order)], strict=False):
        chosen = (documents[i] for i in order[start:end])
        rows[str(part.length)] = Packer(chosen, part.length + EXTRA, part.merge, rng).rows()
    if "256" not in rows:
        rows["256"] = rows["512"][:SHORT_ROWS, : 256 + EXTRA]
    return rows


def main() -> None:
    """Packs one corpus."""
    parser = argparse.ArgumentParser(prog="demo_model.training.packing")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--plan", choices=sorted(PLANS), default="first")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.tokenizer))
    rows = pack(load_documents(arguments.corpus, tokenizer), arguments.plan, arguments.seed)
    np.savez(arguments.out, **rows)
    print({length: values.shape for length, values in rows.items()})


if __name__ == "__main__":
    main()
