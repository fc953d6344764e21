"""Random grammars. Every rule can end; recursion of all kinds, ambiguity and empty rules are wanted."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .features import ends
from .tree import AnyCharacter, Characters, Choice, Repeat, Row, Rule, Text, Tree, TreeGrammar


@dataclass(frozen=True)
class Alphabet:
    """What characters, words and counts grammars are made of."""

    singles: str
    classes: tuple[Characters, ...]
    words: tuple[str, ...]
    # Above every least count, and above what a most count adds to it.
    counts: int = 5

    def encoded(self) -> frozenset[int]:
        """The bytes of its characters and of the borders of its classes."""
        borders = "".join(border for one in self.classes for pair in one.ranges for border in pair)
        return frozenset((self.singles + "".join(self.words) + borders).encode())


SMALL = Alphabet(
    singles="abcé",
    classes=(
        Characters((("a", "b"),)),
        Characters((("b", "d"), ("é", "é"))),
        Characters((("à", "ü"),)),
        Characters((("a", "c"), ("é", "\U0001f600"))),
        Characters((("a", "b"),), negated=True),
        Characters((("\u0080", "\u07ff"), ("c", "c")), negated=True),
        Characters((("\U0001f600", "\U0001f64f"),)),
    ),
    words=("ab", "ba", "éà", "\U0001f603", 'a"\\', "\n-]", "abcab", "^[.]"),
)
"""Few characters, so that readings collide; of one to four bytes, with borders inside their encodings."""

WIDE = Alphabet(
    singles='{}[]:," \n.-',
    classes=(
        Characters((("a", "z"),)),
        Characters((("a", "z"), ("A", "Z"), (" ", " "))),
        Characters((("0", "9"),)),
        Characters((('"', '"'), ("\\", "\\")), negated=True),
        Characters(((" ", " "), ("\n", "\n"))),
        Characters((("\u0000", "\u001f"),), negated=True),
    ),
    words=("name", "true", '"value": ', " the ", "return", "</think>", "\n\n", "day"),
    counts=9,
)
"""What tokens of a real vocabulary are made of."""


def generate(seed: int, alphabet: Alphabet = SMALL) -> TreeGrammar:
    """The grammar of a seed."""
    source = random.Random(f"{seed} of {alphabet.singles}")
    while True:
        count = source.randint(1, 4)
        rules = tuple(_tree(source, alphabet, source.randint(2, 4), count) for _ in range(count))
        # Dead rules are refused by both engines, which is tested elsewhere. A start of one leaf is dull.
        if all(ends(rules)) and isinstance(rules[0], Row | Choice | Repeat):
            return TreeGrammar(rules)


def expression(seed: int, alphabet: Alphabet = SMALL) -> Tree:
    """A tree without rules."""
    return _tree(random.Random(f"expression {seed} of {alphabet.singles}"), alphabet, 4, 0)


def shuffled(grammar: TreeGrammar, source: random.Random) -> TreeGrammar:
    """The same language: the parts of every choice in another order."""

    def tree(one: Tree) -> Tree:
        match one:
            case Row(parts):
                return Row(tuple(map(tree, parts)))
            case Choice(parts):
                return Choice(tuple(source.sample([tree(part) for part in parts], len(parts))))
            case Repeat(body, least, most):
                return Repeat(tree(body), least, most)
        return one

    return TreeGrammar(tuple(map(tree, grammar.rules)))


def _tree(source: random.Random, alphabet: Alphabet, depth: int, rules: int) -> Tree:
    kinds = ["single", "class", "word", "rule", "any", "empty"]
    weights = [4, 6, 2, 7 if rules else 0, 1, 1]
    if depth > 0:
        kinds += ["row", "choice", "repeat", "count"]
        weights += [9, 6, 4, 4]

    def parts() -> tuple[Tree, ...]:
        return tuple(_tree(source, alphabet, depth - 1, rules) for _ in range(source.randint(2, 4)))

    match source.choices(kinds, weights)[0]:
        case "single":
            return Text(source.choice(alphabet.singles))
        case "class":
            return source.choice(alphabet.classes)
        case "word":
            return Text(source.choice(alphabet.words))
        case "rule":
            return Rule(source.randrange(rules))
        case "any":
            return AnyCharacter()
        case "empty":
            return Text("")
        case "row":
            return Row(parts())
        case "choice":
            return Choice(parts())
        case "repeat":
            least, most = source.choice([(0, None), (1, None), (0, 1)])
        case _:
            least = source.randrange(alphabet.counts)
            most = source.choice([None, least, least + source.randrange(1, alphabet.counts)])
    return Repeat(_tree(source, alphabet, depth - 1, rules), least, most)
