"""Text to token ids and back.

Owns the reading of `tokenizer.json` (through the `tokenizers` library), the bytes of every id, and the
incremental decoder. Refuses files that are too large, damaged, or not byte-level BPE. What must hold: the
stream of an incremental decoder, joined, equals the one-shot decoding; it never emits part of a character;
its cost per token does not depend on the length.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from colibri.errors import ColibriError, error, invalid_value
from colibri.files import read_file, reason

if TYPE_CHECKING:
    import tokenizers

FILE_LIMIT: Final = 128 << 20
"""The largest `tokenizer.json` that is read, in bytes; the largest published one has about 35 MB."""

LONG_TEXT: Final = 1 << 16
"""Characters from which a text is encoded in a thread of its own, because it takes a while."""

POLL_SECONDS: Final = 0.05
"""How often the wait for a long text looks whether it shall end."""

# Kinds of splitting that keep every byte of a text.
_KEEPING: Final = {b"Sequence", b"Split", b"ByteLevel", b"Digits", b"Punctuation"}
# Normalisation -> how many times shorter it may make a text. Composition (Unicode annex 15) makes at most
# three bytes of UTF-8 one.
_SHRINKING: Final = {"none": 1, "NFC": 3}


class Tokenizer:
    """A byte-level BPE tokenizer read from `tokenizer.json`."""

    def __init__(self, backend: tokenizers.Tokenizer, source: str, vocab_size: int | None = None) -> None:
        """Wraps an already read tokenizer.

        Args:
            backend: the library's tokenizer.
            source: the file's name, for messages.
            vocab_size: the model's number of logits; every id must be below it.

        Raises:
            ModelError: it is no byte-level BPE, two tokens share an id, or an id is out of range.
        """
        self._backend = backend
        self._source = source
        # id -> (bytes, special)
        self._pieces = _pieces(backend, source, vocab_size)

    @staticmethod
    def read(path: Path, vocab_size: int | None = None) -> Tokenizer:
        """Reads `tokenizer.json`.

        Raises:
            ModelError: `tokenizer_missing` when there is no such file, `model_corrupt` or `model_unsupported`
            when it
                cannot be used.
        """
        try:
            data = read_file(path, FILE_LIMIT)
        except (FileNotFoundError, NotADirectoryError):
            raise error(
                "tokenizer_missing",
                f"{path.parent} has no {path.name}",
                "text cannot be turned into tokens without it; logits and conversion work",
                f"copy {path.name} from the original model into {path.parent}",
            ) from None
        except OSError as fault:
            raise _corrupt(path, reason(fault)) from None
        import tokenizers

        with _library(path):
            backend = tokenizers.Tokenizer.from_buffer(data)
            # A file may carry settings of training. A prompt is never cut, padded or varied at random.
            backend.no_truncation()
            backend.no_padding()
            if hasattr(backend.model, "dropout"):
                backend.model.dropout = None
        _check_added_tokens(backend, data, path)
        return Tokenizer(backend, str(path), vocab_size)

    @property
    def size(self) -> int:
        """Number of tokens, the added ones included."""
        return len(self._pieces)

    @property
    def id_limit(self) -> int:
        """One more than the largest id of a token."""
        return max(self._pieces, default=-1) + 1

    def encode(
        self, text: str, *, add_special_tokens: bool = False, check: Callable[[], None] | None = None
    ) -> list[int]:
        """Token ids of a text.

        Added tokens written out in the text become their ids, as the reference library does.
        `add_special_tokens` also puts in what the file's post-processor asks for (a begin token); chat
        templates write theirs themselves.

        Args:
            text: the text.
            add_special_tokens: see above.
            check: called now and then while a long text is encoded; what it raises ends the wait.

        Raises:
            InvalidValue: the text holds lone surrogates, which are no characters.
            ModelError: the library fails on the text, as it does on expressions that take too long to match.
        """
        if not isinstance(text, str):
            raise invalid_value("text", text, "a text")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise error(
                "invalid_value",
                "the text holds lone surrogates",
                "such code points are no characters and have no UTF-8 form",
                "decode the input as UTF-8 with errors='replace'",
            ) from None

        def work() -> list[int]:
            with _library(Path(self._source)):
                if len(text) < LONG_TEXT:
                    return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)
                # Unlike the call for a single text, this one lets other threads run meanwhile.
                (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
                return list(encoding.ids)

        return work() if len(text) < LONG_TEXT else _in_background(work, check)

    def least_tokens(self, text: str) -> int:
        """A number of tokens that the text has at least, found without encoding it; often 0."""
        most = self._bytes_per_token
        if most is None:
            return 0
        size = len(text.encode("utf-8", "replace"))
        if self._strips:
            size -= sum(map(len, re.findall(r"\s+", text))) * 4
        return max(0, -(-size // most))

    def encode_bytes(self, data: bytes) -> list[int]:
        """Token ids of any bytes: whole characters as text, the others one id per byte."""
        ids: list[int] = []
        while data:
            try:
                return ids + self.encode(data.decode("utf-8"))
            except UnicodeDecodeError as fault:
                ids += self.encode(data[: fault.start].decode("utf-8"))
                ids += [self._byte_ids[byte] for byte in data[fault.start : fault.end]]
                data = data[fault.end :]
        return ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """Text of token ids; bytes that are no UTF-8 become U+FFFD."""
        return self.decode_bytes(ids, skip_special_tokens=skip_special_tokens).decode("utf-8", "replace")

    def decode_bytes(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> bytes:
        """The exact bytes of token ids. An id without a token has none."""
        pieces = self._pieces
        parts = (pieces.get(int(item), _NOTHING) for item in ids)
        return b"".join(data for data, special in parts if not (special and skip_special_tokens))

    def piece(self, token: int) -> tuple[bytes, bool]:
        """The bytes of one id and whether it is a special token; an id without a token has no bytes."""
        return self._pieces.get(token, _NOTHING)

    def token_id(self, text: str) -> int | None:
        """The id of a token by its text, such as `<think>`, or None."""
        found: int | None = self._backend.token_to_id(text)
        return found

    def decoder(self, *, skip_special_tokens: bool = True) -> IncrementalDecoder:
        """A decoder for one stream of tokens."""
        return IncrementalDecoder(self, skip_special_tokens)

    @functools.cached_property
    def _strips(self) -> bool:
        """Whether a token swallows any amount of space beside it."""
        return any(
            token.lstrip or token.rstrip for token in self._backend.get_added_tokens_decoder().values()
        )

    @functools.cached_property
    def _bytes_per_token(self) -> int | None:
        """The most bytes of text that one token can stand for; None where text may vanish altogether."""
        backend = self._backend
        splitting = b"" if backend.pre_tokenizer is None else backend.pre_tokenizer.__getstate__()
        kinds = set(re.findall(rb'"type":"(\w+)"', splitting))
        if b"ByteLevel" not in kinds or kinds - _KEEPING or b'"Removed"' in splitting:
            return None
        normalizer = "none" if backend.normalizer is None else type(backend.normalizer).__name__
        if normalizer not in _SHRINKING or len(self._single_bytes) < 256:
            return None
        return max(len(data) for data, _ in self._pieces.values()) * _SHRINKING[normalizer]

    @functools.cached_property
    def _single_bytes(self) -> dict[int, int]:
        """Byte -> the id of the token that is this byte alone, for the bytes that have one."""
        return {
            data[0]: token
            for token, (data, special) in self._pieces.items()
            if len(data) == 1 and not special
        }

    @functools.cached_property
    def _byte_ids(self) -> dict[int, int]:
        """Byte -> the id that stands for this byte alone."""
        singles = self._single_bytes
        if len(singles) < 256:
            raise error(
                "model_unsupported",
                f"{self._source} has no token for {256 - len(singles)} of the 256 bytes",
                "bytes that are no characters cannot be encoded with it",
                "pass valid UTF-8",
            )
        return singles

    def __repr__(self) -> str:
        return f"Tokenizer({self._source!r}, {self.size} tokens)"


class IncrementalDecoder:
    """Turns tokens into text one at a time, holding back the bytes of an unfinished character.

    The state is at most three bytes, so a token costs the same at any length. Bytes that can no longer become
    a character are shown as U+FFFD at once; a character cut off at the very end becomes one U+FFFD in
    `finish`, just as the one-shot decoding has it.
    """

    __slots__ = ("_decode", "_piece", "_skip_special")

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._piece = tokenizer.piece
        self._skip_special = skip_special_tokens
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def push(self, token: int) -> str:
        """The characters that `token` completes; often empty inside a character of several bytes."""
        data, special = self._piece(token)
        if special and self._skip_special:
            return ""
        return self._decode(data)

    def finish(self) -> str:
        """What is left: empty, or one U+FFFD for a character that was cut off. It can be used again."""
        return self._decode(b"", True)


_NOTHING: Final = (b"", False)


@contextlib.contextmanager
def _library(path: Path) -> Iterator[None]:
    """Turns what the `tokenizers` library raises for a fault of a file into an error that names the file.

    It raises plain `Exception` for some, and panics, which are no `Exception` at all, for others.
    """
    try:
        yield
    except (ColibriError, MemoryError):
        raise
    except Exception as fault:
        raise _corrupt(path, str(fault)) from None
    except BaseException as fault:
        if type(fault).__name__ != "PanicException":
            raise
        raise _corrupt(path, str(fault)) from None


def _in_background(work: Callable[[], list[int]], check: Callable[[], None] | None) -> list[int]:
    """Runs `work` in a thread, so that signals and `check` can end the wait for it."""
    outcome: list[list[int] | BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as fault:
            outcome.append(fault)
        done.set()

    try:
        threading.Thread(target=run, name="colibri-tokenizer", daemon=True).start()
    except RuntimeError:
        # The system has no thread left: then it cannot be interrupted.
        return work()
    while not done.wait(POLL_SECONDS):
        if check is not None:
            check()
    (result,) = outcome
    if isinstance(result, BaseException):
        raise result
    return result


def _corrupt(path: Path, why: str) -> ColibriError:
    return error("model_corrupt", f"{path} cannot be used", why, f"take {path.name} from the original model")


def _check_added_tokens(backend: tokenizers.Tokenizer, data: bytes, path: Path) -> None:
    """Refuses added tokens with another id than stated: the library renumbers them silently."""
    for entry in _added_tokens(data):
        text, stated = entry.get("content"), entry.get("id")
        given = backend.token_to_id(text) if isinstance(text, str) else None
        if given != stated:
            raise _corrupt(
                path, f"the added token {text!r} has the id {stated}, which does not follow the vocabulary"
            )


def _added_tokens(data: bytes) -> list[dict[str, Any]]:
    """The `added_tokens` of a file that the library has accepted.

    Parsing all of a large file takes longer than loading it, so a list that is the only one is picked out.
    """
    found = list(re.finditer(rb'"added_tokens"\s*:\s*(?=\[)', data))
    if len(found) == 1:
        text = data[found[0].end() :].decode("utf-8")
        return list(json.JSONDecoder().raw_decode(text)[0])
    return list(json.loads(data).get("added_tokens", []))


def _pieces(
    backend: tokenizers.Tokenizer, source: str, vocab_size: int | None
) -> dict[int, tuple[bytes, bool]]:
    """Id -> (bytes, special). Memory is bounded by the number of tokens, whatever their ids."""
    kind = type(backend.model).__name__
    decoder = type(backend.decoder).__name__ if backend.decoder is not None else "none"
    if kind != "BPE" or decoder != "ByteLevel":
        raise error(
            "model_unsupported",
            f"{source} is not a byte-level BPE tokenizer",
            f"its model is {kind} and its decoder is {decoder}; needed are BPE and ByteLevel",
            "use a model whose tokenizer is byte-level BPE",
        )
    unicode_to_byte = {char: byte for byte, char in enumerate(_byte_characters())}
    added = backend.get_added_tokens_decoder()
    vocabulary = backend.get_vocab(with_added_tokens=False)
    pieces: dict[int, tuple[bytes, bool]] = {}
    for text, token in vocabulary.items():
        if token in pieces:
            raise _corrupt(Path(source), f"two tokens have the id {token}")
        pieces[token] = (_token_bytes(text, unicode_to_byte), False)
    for token, entry in added.items():
        pieces[token] = (entry.content.encode("utf-8"), entry.special)
    highest = max(pieces, default=-1)
    # Without a model to compare with, ids may leave gaps but not be arbitrary numbers.
    limit = vocab_size if vocab_size is not None else 2 * len(pieces) + 1024
    if highest >= limit:
        raise _corrupt(Path(source), f"it has the token id {highest}; the model has {limit} ids")
    return pieces


def _token_bytes(text: str, unicode_to_byte: dict[str, int]) -> bytes:
    """The bytes of a byte-level token; other text stands for itself, as in `tokenizers`."""
    try:
        return bytes([unicode_to_byte[char] for char in text])
    except KeyError:
        return text.encode("utf-8")


def _byte_characters() -> Sequence[str]:
    """The 256 characters that byte-level BPE (Radford et al. 2019, GPT-2) writes for the bytes 0..255."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    shifted = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(shifted)) for byte in range(256)]
