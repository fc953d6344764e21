"""Both engines behind one face: a compiled grammar, asked what holds after a text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import llguidance
import numpy as np
from colibri import Grammar
from numpy.typing import NDArray

FORCED_LIMIT = 40
"""Bytes of a forced span that are compared."""


@dataclass(frozen=True)
class Position:
    """What holds after a text.

    Attributes:
        allowed: the bytes of which one may follow, in rising order.
        can_end: whether the text belongs to the language.
        forced: the bytes that must follow, at most `FORCED_LIMIT`.
    """

    allowed: bytes
    can_end: bool
    forced: bytes


def our_position(grammar: Grammar, text: bytes) -> Position:
    """What our engine says after a text."""
    return Position(grammar.allowed(text), grammar.accepts(text), grammar.forced(text)[:FORCED_LIMIT])


def byte_tokenizer() -> llguidance.LLTokenizer:
    """A vocabulary of the 256 bytes."""
    return llguidance.LLTokenizer("byte")


class _Vocabulary:
    """A vocabulary as llguidance takes it, without a way to cut text into tokens: masks do not need one."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], special: list[int], end: int) -> None:
        self.tokens, self.special_token_ids, self.eos_token_id = tokens, special, end

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError(text)


def file_tokenizer(path: Path, stop: list[int]) -> llguidance.LLTokenizer:
    """The vocabulary of a byte-level BPE `tokenizer.json`, read without any code of ours.

    llguidance's own reader takes every added token in angle brackets for a special one, against what the
    file says; so it is told which ones are.
    """
    read = json.loads(path.read_text(encoding="utf-8"))
    byte_of = _byte_of_letter()
    tokens = {number: bytes(byte_of[c] for c in name) for name, number in read["model"]["vocab"].items()}
    tokens |= {token["id"]: token["content"].encode() for token in read["added_tokens"]}
    special = [token["id"] for token in read["added_tokens"] if token["special"]]
    vocabulary = _Vocabulary([tokens[number] for number in range(len(tokens))], special, stop[0])
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(vocabulary), eos_token=stop, slices=[])


def _byte_of_letter() -> dict[str, int]:
    """The letters that stand for bytes in the vocabulary of a byte-level BPE."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + at): byte for at, byte in enumerate(others)}


class Theirs:
    """llguidance, told neither to force spans nor to prefer one cut of a text into tokens."""

    def __init__(self, grammar: str, tokenizer: llguidance.LLTokenizer) -> None:
        self._size = tokenizer.vocab_size
        self._matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0)

        if self.gave_up():
            raise ValueError(self._matcher.get_error())

    @staticmethod
    def from_lark(lark: str, tokenizer: llguidance.LLTokenizer) -> Theirs:
        """Reads a Lark grammar."""
        options = '%llguidance {"no_forcing": true}\n'
        return Theirs(llguidance.LLMatcher.grammar_from_lark(options + lark), tokenizer)

    @staticmethod
    def from_regex(pattern: str, tokenizer: llguidance.LLTokenizer) -> Theirs:
        """Reads a pattern that the whole text must match."""
        return Theirs(llguidance.LLMatcher.grammar_from_regex(pattern), tokenizer)

    @staticmethod
    def from_json_schema(schema: str, tokenizer: llguidance.LLTokenizer) -> Theirs:
        """Reads a JSON schema; the texts have no white space between the signs."""
        compact = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
        return Theirs(llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=compact), tokenizer)

    def gave_up(self) -> bool:
        """Whether llguidance hit one of its limits."""
        return self._matcher.is_error()

    def reset(self) -> None:
        """Back to the empty text."""
        self._matcher.reset()

    def take(self, token: int) -> None:
        """Takes one token."""
        if not self._matcher.consume_token(token):
            raise ValueError(self._matcher.get_error())

    def can_end(self) -> bool:
        """Whether the text can end."""
        return self._matcher.is_accepting()

    def mask(self) -> NDArray[np.bool_]:
        """Which tokens may follow, [vocab]."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        return np.unpackbits(bits, bitorder="little")[: self._size].astype(np.bool_)

    def allowed(self) -> bytes:
        """Which bytes may follow, over the byte vocabulary."""
        return np.flatnonzero(self.mask()[:256]).astype(np.uint8).tobytes()

    def position(self) -> Position:
        """What holds, over the byte vocabulary; the forced span is found by walking it."""
        first, end = self.allowed(), self.can_end()
        allowed, forced = first, b""
        while len(allowed) == 1 and not self.can_end() and len(forced) < FORCED_LIMIT:
            self.take(allowed[0])
            forced += allowed
            allowed = self.allowed()
        self._matcher.rollback(len(forced))
        return Position(first, end, forced)
