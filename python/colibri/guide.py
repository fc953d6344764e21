"""One generation's grammar: what may come next, and what must.

Owns the position in the grammar, the choice between constraining and merely drafting, the drafts themselves,
and their statistics. What the grammar forces is cut into the tokens that the tokenizer would cut it into
behind the text before it. A constrained answer takes these and no shorter ones, with drafts or without:
there is no text to choose, and the model was trained on this cut. A draft is made of the same tokens, and
verified like any other. What must hold: a draft never changes what is chosen; in draft mode the grammar
changes nothing at all, and when the text leaves it, it is let go of without a word; the position is that of
the chosen tokens, never ahead of them.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from colibri.engine import GrammarState, grammar_state, translated
from colibri.errors import GrammarError, error, invalid_value
from colibri.grammar import Grammar, no_grammar, vocabulary_of
from colibri.results import DraftStat
from colibri.setting_kinds import DRAFT_MOST, DRAFTS, GRAMMAR_MODES
from colibri.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DRAFT_DEFAULT: Final = 16
"""The most tokens of one draft, where nothing else is said."""
TAIL: Final = 8
"""The most tokens before a forced span that are cut again together with it."""
SPAN: Final = 1024
"""The most bytes of a forced span that one draft looks at."""
WINDOW: Final = 32
"""Proposed tokens over which acceptance is judged."""
JUDGED_FROM: Final = 12
"""Fewer proposed tokens are not judged."""
BREAK_EVEN: Final = 0.5
"""Share of accepted tokens below which drafts cost more than they save: a refused token is computed for
nothing, and with experts on disk it costs about what a pass of its own costs."""


@dataclasses.dataclass(frozen=True, slots=True)
class Guidance:
    """What a request says about its grammar.

    Attributes:
        grammar: the grammar of the whole answer.
        constrain: whether tokens outside the grammar are left out of the choice.
        draft: `auto`, `off` or `grammar` (never switched off).
        draft_max: the most tokens of one draft.
    """

    grammar: Grammar
    constrain: bool = True
    draft: str = "auto"
    draft_max: int = DRAFT_DEFAULT


def guidance(grammar: Grammar | None, mode: object, draft: object, draft_max: object) -> Guidance | None:
    """The guidance of options, checked; None without a grammar.

    Raises:
        InvalidValue: naming the option that is wrong.
    """
    if grammar is not None and not isinstance(grammar, Grammar):
        raise no_grammar(grammar)
    if mode not in GRAMMAR_MODES:
        raise invalid_value("grammar_mode", mode, f"one of {', '.join(map(repr, GRAMMAR_MODES))}")
    if draft not in DRAFTS:
        raise invalid_value("draft", draft, f"one of {', '.join(map(repr, DRAFTS))}")
    if isinstance(draft_max, bool) or not isinstance(draft_max, int) or not 1 <= draft_max <= DRAFT_MOST:
        raise invalid_value("draft_max", draft_max, f"an integer from 1 to {DRAFT_MOST}")
    return None if grammar is None else Guidance(grammar, mode == "constrain", str(draft), draft_max)


class Guide:
    """The grammar of one running generation."""

    def __init__(
        self,
        given: Guidance,
        tokenizer: Tokenizer,
        size: int,
        prompt: Sequence[int],
        stop_ids: frozenset[int],
        awaits: int | None = None,
        replay: Sequence[int] = (),
    ) -> None:
        """Puts the grammar at its beginning, or where an answer that is continued was cut.

        Args:
            given: what the request says.
            tokenizer: cuts forced text into tokens.
            size: number of logits.
            prompt: tokens before the answer.
            stop_ids: tokens that may end the answer where the grammar can.
            awaits: the token behind which the grammar begins, for a prompt that ends inside of reasoning.
            replay: tokens of the answer that were chosen before.

        Raises:
            InvalidValue: the replayed tokens do not fit the grammar.
        """
        self._given = given
        self._tokenizer = tokenizer
        vocabulary = vocabulary_of(tokenizer, size)
        self._state: GrammarState | None = grammar_state(given.grammar.native, vocabulary, sorted(stop_ids))
        # Bytes of every token, [vocab].
        self._lengths = vocabulary.lengths()
        self._longest = int(self._lengths.max(initial=0))
        self._stops = len(stop_ids)
        self._awaits = awaits
        # The last tokens of prompt and answer, with which a forced span is cut.
        self._tail = collections.deque(prompt[-TAIL:], TAIL)
        # Proposed and accepted tokens of the last drafts.
        self._window: collections.deque[tuple[int, int]] = collections.deque()
        self._off: str | None = None if given.draft != "off" else "drafts are off"
        # The tokens of what is forced next; None until they are asked for.
        self._due: list[int] | None = None
        self.proposed = self.accepted = self.forced = 0
        for token in replay:
            self.commit(token)
        self.forced = 0

    @property
    def _awake(self) -> GrammarState | None:
        """The position, where the grammar has begun and the text has not left it."""
        return None if self._awaits is not None else self._state

    def constraint(self, logits: NDArray[np.float32] | None = None) -> GrammarState | None:
        """The position whose tokens alone may be chosen next, or None when any may.

        Where text is forced that is one token, unless `logits` [vocab] rule it out.
        """
        state = self._awake if self._given.constrain else None
        if state is None:
            return None
        due = self._forced_tokens(state)
        if due and (logits is None or logits[due[0]] > -math.inf):
            with translated():
                state.narrow(due[0])
        return state

    @property
    def finished(self) -> bool:
        """Whether the constrained answer is whole and nothing can follow it."""
        state = self._awake if self._given.constrain else None
        with translated():
            return state is not None and state.can_end and state.mask_counts()[0] <= self._stops

    @property
    def complete(self) -> bool | None:
        """Whether the constrained answer is a whole text of the grammar; None in draft mode."""
        if not self._given.constrain:
            return None
        return self._awaits is None and self._state is not None and self._state.can_end

    def accepts(self, text: str) -> bool:
        """Whether a text is a whole one of the grammar."""
        return self._given.grammar.accepts(text)

    def commit(self, token: int) -> None:
        """Takes a token that was chosen for the answer.

        Raises:
            InvalidValue: a replayed token does not fit.
        """
        self._tail.append(token)
        rest = self._due[1:] if self._due and self._due[0] == token else None
        self._due = rest or None
        if self._awaits is not None:
            if token == self._awaits:
                self._awaits = None
            return
        state = self._state
        if state is None:
            return
        data = self._tokenizer.piece(token)[0]
        with self._quietly():
            is_forced = bool(data) and state.forced(len(data)) == data
            accepted = state.accept(token)
        if self._state is None:
            return
        if accepted:
            self.forced += is_forced
        elif self._given.constrain:
            raise error(
                "invalid_value",
                "the answer so far does not fit the grammar",
                "a continued answer was begun with another grammar, or without one",
                "continue it with the grammar it was begun with",
            )
        else:
            self._state, self._off = None, self._off or "the text left the grammar"

    def propose(self, most: int) -> list[int]:
        """At most `most` tokens that the grammar forces next, cut as the tokenizer would cut them."""
        state = self._awake
        most = min(most, self._given.draft_max)
        if state is None or self._off is not None or most < 1:
            return []
        return self._forced_tokens(state)[:most]

    def _forced_tokens(self, state: GrammarState) -> list[int]:
        """The tokens of what is forced next; found once for a span, and then used up."""
        if self._due is None:
            self._due = []
            with self._quietly():
                span = state.forced(SPAN)
                tokens = self._cut(_whole_characters(span)) if span else []
                start = state.length
                try:
                    self._due = self._stable(state, tokens, len(span))
                finally:
                    state.rewind(start)
        return self._due

    def judge(self, proposed: int, accepted: int) -> None:
        """Takes the outcome of a draft, and stops drafting when that does not pay."""
        self.proposed += proposed
        self.accepted += accepted
        self._window.append((proposed, accepted))
        while sum(count for count, _ in self._window) - self._window[0][0] >= WINDOW:
            self._window.popleft()
        tried, right = (sum(column) for column in zip(*self._window, strict=True))
        if self._given.draft == "auto" and tried >= JUDGED_FROM and right < BREAK_EVEN * tried:
            self._off = self._off or f"{right} of the last {tried} drafted tokens were accepted"

    def statistics(self) -> DraftStat:
        """What the drafts did."""
        return DraftStat(self.proposed, self.accepted, self._off if self._given.draft != "off" else None)

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        """Translates errors of the core; in draft mode a limit that is hit only ends the drafts."""
        try:
            with translated():
                yield
        except GrammarError as fault:
            if self._given.constrain:
                raise
            self._state, self._off = None, fault.message

    def _cut(self, span: bytes) -> list[int]:
        """The tokens of a span behind the text before it; none where it would be cut elsewhere.

        The span is cut together with the last tokens, whose cut must come out as it was: else the last of
        them would have been a longer one, and what follows is not what the model has seen in its training.
        """
        tail = list(self._tail)
        for count in range(len(tail), 0, -1):
            behind = tail[-count:]
            tokens = self._tokenizer.encode_bytes(self._tokenizer.decode_bytes(behind) + span)
            if tokens[:count] == behind:
                return tokens[count:]
        return []

    def _stable(self, state: GrammarState, tokens: list[int], left: int) -> list[int]:
        """The first tokens, up to where a longer one that reaches behind the span would do as well."""
        for index, token in enumerate(tokens):
            size = int(self._lengths[token])
            # Only at the end of a span can a token reach behind it.
            if left < self._longest and bool((self._lengths[state.mask()] > left).any()):
                return tokens[:index]
            if not state.accept(token):
                return tokens[:index]
            left -= size
        return tokens


def _whole_characters(data: bytes) -> bytes:
    """The bytes without the beginning of a character at their end."""
    for cut in range(1, min(4, len(data)) + 1):
        byte = data[-cut]
        if byte >= 0xC0:
            width = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data if cut >= width else data[:-cut]
        if byte < 0x80:
            break
    return data
