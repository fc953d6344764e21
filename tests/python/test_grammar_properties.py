"""What must hold of every grammar: going back, tokens cut into bytes, alternatives in another order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import colibri
import numpy as np
import pytest
from colibri import Grammar
from colibri.engine import GrammarState, grammar_state
from colibri.grammar import vocabulary_of
from colibri.tokenizer import Tokenizer

from .grammar_oracle.generator import SMALL, WIDE, Alphabet, generate, shuffled
from .grammar_oracle.tree import TreeGrammar

GRAMMARS, LONGEST, FORCED_LIMIT = 80, 8, 1000
TOKENIZER = Path(colibri.__file__).with_name("data") / "demo" / "tokenizer.json"
STOP = [2540]

Seen = tuple[bytes, bool, bool, bytes, bytes]
Start = Callable[[TreeGrammar], GrammarState]


def seen(state: GrammarState) -> Seen:
    """All that a position tells."""
    mask = np.packbits(state.mask()).tobytes()
    return mask, state.can_end, state.finished, state.allowed_bytes(), state.forced(FORCED_LIMIT)


def choices(state: GrammarState, source: random.Random) -> Iterator[int]:
    """Random allowed tokens, until the text ends or is long; the caller takes them."""
    while state.length < LONGEST and (allowed := np.flatnonzero(state.mask())).size:
        yield int(source.choice(allowed))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.read(TOKENIZER)


@pytest.fixture(scope="module")
def start(tokenizer: Tokenizer) -> Start:
    """Makes the first position of a grammar over the vocabulary of the demonstration model."""
    vocabulary = vocabulary_of(tokenizer, tokenizer.id_limit)

    def started(grammar: TreeGrammar) -> GrammarState:
        return grammar_state(Grammar.from_gbnf(grammar.gbnf()).native, vocabulary, STOP)

    return started


@pytest.fixture(params=[SMALL, WIDE], ids=["small", "wide"])
def alphabet(request: pytest.FixtureRequest) -> Alphabet:
    found: Alphabet = request.param
    return found


def test_going_back_and_taking_the_same_tokens_reaches_the_same_state(
    start: Start, alphabet: Alphabet
) -> None:
    for seed in range(GRAMMARS):
        source = random.Random(seed)
        state = start(generate(seed, alphabet))
        tokens, states = [], [seen(state)]
        for token in choices(state, source):
            refused = int(source.choice([*np.flatnonzero(~state.mask())[:50], -1 % 2**32]))
            assert not state.accept(refused)
            assert state.accept(token)
            tokens.append(token)
            states.append(seen(state))
        for _ in range(6):
            state.rewind(source.randint(0, state.length))
            for at in range(state.length, source.randint(state.length, len(tokens))):
                assert seen(state) == states[at], f"seed {seed} at {at}"
                assert state.accept(tokens[at])
            assert seen(state) == states[state.length], f"seed {seed}"


def test_the_bytes_of_a_token_lead_where_the_token_leads(
    start: Start, alphabet: Alphabet, tokenizer: Tokenizer
) -> None:
    pieces = [tokenizer.piece(token)[0] for token in range(tokenizer.id_limit)]
    letters = {piece[0]: token for token, piece in enumerate(pieces) if len(piece) == 1}
    longer = 0
    for seed in range(GRAMMARS):
        grammar = generate(seed, alphabet)
        whole, cut = start(grammar), start(grammar)
        for token in choices(whole, random.Random(seed)):
            assert whole.accept(token)
            parts = [token] if token in STOP else [letters[byte] for byte in pieces[token]]
            assert all(cut.accept(part) for part in parts), f"seed {seed}"
            assert seen(cut) == seen(whole), f"seed {seed}"
            longer += len(parts) > 1
    assert longer > GRAMMARS, longer


def test_the_order_of_alternatives_changes_nothing(start: Start, alphabet: Alphabet) -> None:
    changed = 0
    for seed in range(GRAMMARS):
        source = random.Random(seed)
        grammar = generate(seed, alphabet)
        other = shuffled(grammar, source)
        changed += other != grammar
        one, two = start(grammar), start(other)
        assert seen(one) == seen(two), f"seed {seed}"
        for token in choices(one, source):
            assert one.accept(token)
            assert two.accept(token)
            assert seen(one) == seen(two), f"seed {seed}"
    assert changed > GRAMMARS / 4, changed
