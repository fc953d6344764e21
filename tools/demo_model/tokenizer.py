"""The tokenizer of the demo model: byte-level BPE with GLM's split rule and special tokens.

    python -m demo_model.tokenizer CORPUS.jsonl tokenizer.json

No merge contains a digit: while merges are learned, the split rule gives single digits. The saved rule is
GLM's, with runs of up to three digits.
"""

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from .architecture import CONFIG

SPECIAL = (
    "<|endoftext|>",
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "<sop>",
    "<eop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
)
# Added tokens that decoding keeps, as in GLM.
PLAIN = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
)
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLIT_SINGLE_DIGITS = SPLIT.replace("{1,3}", "")
TRAINING_DOCUMENTS = 60_000
DOCUMENT_START = "[gMASK]<sop>"
BATCH = 20_000


def read_corpus(path: Path) -> Iterator[str]:
    """Documents of a corpus with one JSON string a line."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def split_documents(text: str) -> list[str]:
    """Documents of a text that holds them one after another, each beginning with `[gMASK]<sop>`."""
    return [DOCUMENT_START + rest for rest in text.split(DOCUMENT_START)[1:]]


def pre_tokenizer(split: str) -> pre_tokenizers.PreTokenizer:
    """Splits by the rule, then maps bytes to characters."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def train_tokenizer(documents: Sequence[str]) -> Tokenizer:
    """Learns the merges from the text between special tokens."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=False))
    tokenizer.pre_tokenizer = pre_tokenizer(SPLIT_SINGLE_DIGITS)
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG.vocab_size - len(SPECIAL) - len(PLAIN),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
        min_frequency=2,
    )
    longest_first = sorted(SPECIAL + PLAIN, key=len, reverse=True)
    added = re.compile("|".join(re.escape(token) for token in longest_first))
    pieces = (piece for document in documents for piece in added.split(document) if piece)
    tokenizer.train_from_iterator(pieces, trainer)
    tokenizer.pre_tokenizer = pre_tokenizer(SPLIT)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in PLAIN])
    return tokenizer


def encode_documents(tokenizer: Tokenizer, documents: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """All ids one after another (uint16), and the length of every document (int32)."""
    ids, lengths = [], []
    for start in range(0, len(documents), BATCH):
        batch = tokenizer.encode_batch(documents[start : start + BATCH], add_special_tokens=False)
        for encoding in batch:
            ids.append(np.array(encoding.ids, np.uint16))
            lengths.append(len(encoding.ids))
    return np.concatenate(ids), np.array(lengths, np.int32)


def main() -> None:
    """Trains on the first documents of a corpus."""
    parser = argparse.ArgumentParser(prog="demo_model.tokenizer")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    documents = list(islice(read_corpus(arguments.corpus), TRAINING_DOCUMENTS))
    tokenizer = train_tokenizer(documents)
    tokenizer.save(str(arguments.out))
    print(f"{tokenizer.get_vocab_size()} tokens from {len(documents)} documents")


if __name__ == "__main__":
    main()
