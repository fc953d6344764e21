"""The text of an answer, put together from its tokens.

Owns whole characters, reasoning apart from the answer, and stop strings. Refuses nothing. What must hold: the
pieces joined are the whole text, and no piece holds a part of a stop string that is met later.
"""

from __future__ import annotations

from collections.abc import Iterator

from colibri.results import ChunkKind
from colibri.tokenizer import IncrementalDecoder


class TextAssembler:
    """Tokens to text: whole characters, reasoning apart from the answer, stop strings cut off.

    Text that may be the beginning of a stop string is held back until that is decided.
    """

    def __init__(
        self,
        decoder: IncrementalDecoder | None,
        stop: tuple[str, ...] = (),
        think_ids: tuple[int, int] | None = None,
        reasoning: bool = False,
    ) -> None:
        self._decoder = decoder
        self._stop = stop
        self._think_ids = think_ids
        self._kind: ChunkKind = "reasoning" if reasoning else "text"
        self._held = ""
        self._stopped = False
        self._parts: dict[ChunkKind, list[str]] = {"text": [], "reasoning": []}

    def push(self, token: int) -> tuple[ChunkKind, str, bool]:
        """Takes a token; returns kind and text of what it completes, and whether a stop string was met."""
        if self._decoder is None:
            return "text", "", False
        kind = self._kind
        if self._think_ids is not None and token in self._think_ids:
            piece = self._emit(self._held + self._decoder.finish())
            self._held = ""
            self._kind = "reasoning" if token == self._think_ids[0] else "text"
            return kind, piece, False
        piece = self._decoder.push(token)
        if kind == "text" and self._stop:
            piece = self._cut(piece)
        return kind, self._emit(piece), self._stopped

    def finish(self) -> Iterator[tuple[ChunkKind, str]]:
        """What is left at the end: text held back, and U+FFFD for a character that was cut off."""
        if self._decoder is None:
            return
        tail = self._decoder.finish()
        if self._stopped:
            return
        piece = self._cut(tail) if self._kind == "text" and self._stop else tail
        piece += "" if self._stopped else self._held
        self._held = ""
        if piece:
            yield self._kind, self._emit(piece)

    def joined(self, kind: ChunkKind) -> str:
        """All text of a kind so far."""
        return "".join(self._parts[kind])

    def _emit(self, piece: str) -> str:
        if piece:
            self._parts[self._kind].append(piece)
        return piece

    def _cut(self, piece: str) -> str:
        """The part of held and new text that can be shown now."""
        text = self._held + piece
        found = [index for index in (text.find(stop) for stop in self._stop) if index >= 0]
        if found:
            self._stopped, self._held = True, ""
            return text[: min(found)]
        keep = max(_overlap(text, stop) for stop in self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`, without being all of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
