"""Choosing tokens: rows of logits in, tokens out, with drafts that are verified on the way.

Owns the agreement between the KV cache, the chosen tokens and the drafts that lie ahead of them. What must
hold: with or without drafts, and whatever they propose, the same tokens are chosen; when the work ends, the
cache holds no token that was not chosen.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from colibri.engine import ROWS_MAX, EngineSession, Sampling, Watcher, translated
from colibri.errors import error
from colibri.guide import Guide
from colibri.sampling import SamplingParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    LogitsProcessor = Callable[[NDArray[np.int32], NDArray[np.float32]], None]


class Decoder:
    """The chosen tokens of one generation, and the cache that follows them."""

    def __init__(
        self,
        session: EngineSession,
        prompt: Sequence[int],
        params: SamplingParams,
        processors: Sequence[LogitsProcessor],
        guide: Guide | None,
        watcher: Watcher,
    ) -> None:
        self._session = session
        self._sampling = _native_sampling(params)
        self._processors = tuple(processors)
        self._guide = guide
        self._watcher = watcher
        self._tokens = list(prompt)
        self._prompt = len(prompt)
        # Drafted tokens that the cache already holds behind the chosen ones.
        self._ahead: collections.deque[int] = collections.deque()
        self._drafted = 0
        self._most = params.max_tokens or 1
        self.forwards = self.saved = 0

    def prefill(self, cached: int) -> bool:
        """Reads the prompt, of which the cache holds `cached` tokens; False when it was stopped."""
        draft = self._propose()
        if not draft:
            return self._session.extend(self._tokens[cached:], self._watcher)
        # The last token of the prompt is verified with the draft behind it.
        if cached < self._prompt - 1 and not self._session.extend(self._tokens[cached:-1], self._watcher):
            return False
        return self._extend(self._tokens[-1], draft)

    def choose(self) -> tuple[int, float]:
        """The next token, which must be given to `commit` or end the answer, and its log probability."""
        position, guide = len(self._tokens), self._guide
        if not self._processors:
            state = guide.constraint() if guide is not None else None
            return self._session.sample(position, self._sampling, state)
        logits = self._processed(position)
        state = guide.constraint(logits) if guide is not None else None
        return self._session.choose(logits, position, self._sampling, state)

    def commit(self, token: int) -> None:
        """Takes the chosen token into the answer."""
        self._tokens.append(token)
        if self._guide is not None:
            self._guide.commit(token)

    def advance(self) -> bool:
        """Brings the cache behind the last token; False when that was stopped."""
        token = self._tokens[-1]
        if self._ahead and self._ahead[0] == token:
            self._ahead.popleft()
            self.saved += 1
            if not self._ahead:
                self._settle(refused=False)
            return True
        self._settle(refused=True)
        draft = self._propose()
        self.forwards += 1
        return self._extend(token, draft) if draft else self._session.extend((token,), self._watcher)

    def finish(self) -> None:
        """Leaves in the cache only what was chosen."""
        # The last token may be a draft that was right, and need not be computed again.
        chosen = len(self._session) - len(self._ahead)
        if self._ahead and chosen < len(self._tokens) and self._ahead[0] == self._tokens[-1]:
            self._ahead.popleft()
        self._settle(refused=True)
        if len(self._session) > len(self._tokens):
            self._session.rewind(len(self._tokens))

    def _propose(self) -> list[int]:
        if self._guide is None:
            return []
        room = self._session.capacity - len(self._tokens)
        left = self._most - (len(self._tokens) - self._prompt) - 1
        return self._guide.propose(min(room, left, ROWS_MAX - 1))

    def _extend(self, token: int, draft: list[int]) -> bool:
        if not self._session.extend((token, *draft), self._watcher, every_row=True):
            return False
        self._ahead.extend(draft)
        self._drafted = len(draft)
        return True

    def _settle(self, *, refused: bool) -> None:
        """Ends a draft: reports it, and takes back what was refused."""
        if self._drafted and self._guide is not None:
            self._guide.judge(self._drafted, self._drafted - len(self._ahead))
        if refused and self._ahead:
            self._session.rewind(len(self._session) - len(self._ahead))
        self._ahead.clear()
        self._drafted = 0

    def _processed(self, position: int) -> NDArray[np.float32]:
        """The row for a position after the penalties and the caller's processors."""
        import numpy as np

        tokens = np.array(self._tokens, dtype=np.int32)
        logits = self._session.penalised(position, self._sampling)
        for processor in self._processors:
            processor(tokens, logits)
        # An infinite maximum leaves nothing to choose from, and so does a row without a finite number.
        if np.isnan(logits).any() or not np.isfinite(logits.max()):
            raise error(
                "non_finite",
                "logits_processors left a row of logits without a largest finite number",
                "NaN or +infinity was written, or everything is -infinity",
                "write finite numbers, and -infinity only for tokens that must not be chosen",
            )
        return logits


def _native_sampling(params: SamplingParams) -> Sampling:
    values = dataclasses.asdict(params)
    del values["max_tokens"]
    with translated():
        return Sampling(**values)
