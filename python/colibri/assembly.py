"""The text of an answer, put together from its tokens.

Owns whole characters, reasoning and tool calls apart from the answer, stop strings, and the seam of an answer
that is continued. Refuses nothing. What must hold: the pieces joined are the whole text, and no piece holds a
part of a stop string, or of the mark that opens a call, that is met later; a continued answer is taken apart
as if it had never been cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from colibri.results import ChunkKind
from colibri.tokenizer import IncrementalDecoder


class TextAssembler:
    """Tokens to text: whole characters, reasoning and calls apart from the answer, stop strings cut off.

    Text that may be the beginning of a stop string or a call is held back until that is decided. From the
    first call on everything belongs to calls.
    """

    def __init__(
        self,
        decoder: IncrementalDecoder | None,
        stop: tuple[str, ...] = (),
        think_ids: tuple[int, int] | None = None,
        reasoning: bool = False,
        call_opens: str | None = None,
    ) -> None:
        self._decoder = decoder
        self._stop = stop
        self._think_ids = think_ids
        self._kind: ChunkKind = "reasoning" if reasoning else "text"
        self._held = ""
        self._stopped = False
        self._call_opens = call_opens
        # What ends or interrupts plain text.
        self._marks = stop if call_opens is None else (*stop, call_opens)
        self._parts: dict[ChunkKind, list[str]] = {"text": [], "reasoning": [], "tool_call": []}
        # Of an answer that is continued: what it showed before that was decided, such as the beginning of a
        # call, and how many characters of that were wrong.
        self._shown: dict[ChunkKind, str] = {}
        self._wrong: dict[ChunkKind, int] = {}

    def replay(self, tokens: Iterable[int], shown: Mapping[ChunkKind, str]) -> None:
        """Takes the tokens of an answer that is continued; what it showed of each kind is not shown again."""
        stop, marks = self._stop, self._marks
        # The stop strings of that answer, known or not, have done their work.
        self._stop, self._marks = (), () if self._call_opens is None else (self._call_opens,)
        for token in tokens:
            self.push(token)
        self._stop, self._marks = stop, marks
        for kind, text in shown.items():
            decided = self.joined(kind)
            if kind == self._kind == "text" and stop and text.startswith(decided):
                # A stop string may have begun in what was shown.
                undecided = decided + self._held
                keep = max(len(self._held), *(_overlap(undecided, mark) for mark in marks))
                decided, self._held = undecided[: len(undecided) - keep], undecided[len(undecided) - keep :]
            # A text that ends at a stop string is shorter than what was decided.
            self._shown[kind] = text[len(decided) :] if text.startswith(decided) else ""
            self._parts[kind].clear()

    @property
    def stopped(self) -> bool:
        """Whether a stop string was met; the text ends before it."""
        return self._stopped

    def withdrawn(self, kind: ChunkKind) -> int:
        """How many characters at the end of what a continued answer showed turned out to be another kind."""
        return self._wrong.get(kind, 0) + len(self._shown.get(kind, ""))

    def push(self, token: int) -> tuple[ChunkKind, str, bool]:
        """Takes a token; returns kind and text of what it completes, and whether a stop string was met."""
        if self._decoder is None:
            return "text", "", False
        kind = self._kind
        if kind == "tool_call":
            piece, self._held = self._held + self._decoder.push(token), ""
            return kind, self._emit(piece), False
        if self._think_ids is not None and token in self._think_ids:
            piece = self._emit(self._held + self._decoder.finish())
            self._held = ""
            self._kind = "reasoning" if token == self._think_ids[0] else "text"
            return kind, piece, False
        piece = self._decoder.push(token)
        if kind == "text" and self._marks:
            piece = self._cut(piece)
        return kind, self._emit(piece, kind), self._stopped

    def finish(self) -> Iterator[tuple[ChunkKind, str]]:
        """What is left at the end: text held back, and U+FFFD for a character that was cut off."""
        if self._decoder is None:
            return
        tail = self._decoder.finish()
        if self._stopped:
            return
        kind = self._kind
        piece = self._cut(tail) if kind == "text" and self._marks else self._take_held() + tail
        if not self._stopped and self._kind == kind:
            piece += self._take_held()
        if piece:
            yield kind, self._emit(piece, kind)
        rest = self._take_held()
        if rest:
            yield self._kind, self._emit(rest)

    def joined(self, kind: ChunkKind) -> str:
        """All text of a kind so far."""
        return "".join(self._parts[kind])

    def add_text(self, piece: str) -> str:
        """Counts a text as the answer's, such as one that looked like a call; returns what is new of it."""
        return self._emit(piece, "text")

    def _take_held(self) -> str:
        held, self._held = self._held, ""
        return held

    def _emit(self, piece: str, kind: ChunkKind | None = None) -> str:
        """Counts a piece among those of its kind, and returns what of it was not shown before."""
        kind = kind or self._kind
        if not piece:
            return ""
        shown = self._shown.pop(kind, "")
        differs = (at for at, (old, new) in enumerate(zip(shown, piece, strict=False)) if old != new)
        same = next(differs, min(len(shown), len(piece)))
        new, left = piece[same:], shown[same:]
        if new:
            self._parts[kind].append(new)
            self._wrong[kind] = self._wrong.get(kind, 0) + len(left)
        elif left:
            self._shown[kind] = left
        return new

    def _cut(self, piece: str) -> str:
        """The part of held and new text that can be shown now."""
        text = self._held + piece
        found = [(text.find(mark), mark) for mark in self._marks if mark in text]
        if found:
            index, mark = min(found)
            if mark == self._call_opens and mark not in self._stop:
                self._kind, self._held = "tool_call", text[index:]
            else:
                self._stopped, self._held = True, ""
            return text[:index]
        keep = max(_overlap(text, mark) for mark in self._marks)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`, without being all of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
