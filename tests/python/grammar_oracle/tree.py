"""A grammar as a tree, written as GBNF for our engine and as Lark for llguidance.

Lark's terminals are single characters throughout: llguidance cuts text into terminals greedily before it
parses, so that longer ones would describe another language than the same text in GBNF.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Characters:
    """One character out of ranges, or outside of them."""

    ranges: tuple[tuple[str, str], ...]
    negated: bool = False


@dataclass(frozen=True)
class AnyCharacter:
    """One character."""


@dataclass(frozen=True)
class Text:
    """These characters."""

    text: str


@dataclass(frozen=True)
class Row:
    """All parts in a row."""

    parts: tuple[Tree, ...]


@dataclass(frozen=True)
class Choice:
    """One of the parts."""

    parts: tuple[Tree, ...]


@dataclass(frozen=True)
class Repeat:
    """A body, `least` to `most` times; without end when `most` is None."""

    body: Tree
    least: int
    most: int | None


@dataclass(frozen=True)
class Rule:
    """A reference to a rule."""

    number: int


Tree: TypeAlias = Characters | AnyCharacter | Text | Row | Choice | Repeat | Rule


@dataclass(frozen=True)
class TreeGrammar:
    """Rules by number; the first one is the start."""

    rules: tuple[Tree, ...]

    def gbnf(self) -> str:
        """In our notation."""
        return self._written("root", " ::= ", _Gbnf())

    def lark(self) -> str:
        """In llguidance's notation."""
        return self._written("start", ": ", _Lark())

    def _written(self, start: str, sign: str, notation: _Notation) -> str:
        names = [start if number == 0 else f"r{number}" for number in range(len(self.rules))]
        pairs = zip(names, self.rules, strict=True)
        return "".join(f"{name}{sign}{notation.tree(rule, names, _CHOICE)}\n" for name, rule in pairs)


# How tightly an expression binds: alternatives, a row, one repeated item, an item that may be repeated.
_CHOICE, _ROW, _REPEATED, _ITEM = range(4)


def as_regex(tree: Tree) -> str:
    """A tree without rules in the notation of patterns, as far as ECMAScript and Rust agree on it."""
    return _Regex().tree(tree, [], _CHOICE)


class _Notation:
    """What the notations share: choices, rows, groups, repetitions, names."""

    gap = " "
    group = "("
    any_character = "."

    def tree(self, tree: Tree, names: list[str], needed: int) -> str:
        """An expression, in parentheses where what stands around it needs them."""
        match tree:
            case Row(parts):
                row = self.gap.join(self.tree(part, names, _REPEATED) for part in parts)
                return self.wrapped(row, _ROW, needed)
            case Choice(parts):
                choice = " | ".join(self.tree(part, names, _ROW) for part in parts)
                return self.wrapped(choice, _CHOICE, needed)
            case Repeat(body, least, most):
                repeated = self.tree(body, names, _ITEM) + self.count(least, most)
                return self.wrapped(repeated, _REPEATED, needed)
            case Rule(number):
                return names[number]
            case Text(text):
                return self.text(text, needed)
            case Characters(ranges, negated):
                pairs = ((self.character(a), self.character(b)) for a, b in ranges)
                body = "".join(a if a == b else f"{a}-{b}" for a, b in pairs)
                return self.one(f"[{'^' if negated else ''}{body}]")
            case AnyCharacter():
                return self.any_character

    def wrapped(self, text: str, binds: int, needed: int) -> str:
        """An expression that binds as it does, where one that binds as needed has to stand."""
        return text if binds >= needed else f"{self.group}{text})"

    def count(self, least: int, most: int | None) -> str:
        """The sign of a repetition."""
        sign = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
        if sign is None and least == most:
            return f"{{{least}}}"
        return f"{{{least},{'' if most is None else most}}}" if sign is None else sign

    def text(self, text: str, needed: int) -> str:
        raise NotImplementedError

    def character(self, character: str) -> str:
        raise NotImplementedError

    def one(self, characters: str) -> str:
        raise NotImplementedError


class _Gbnf(_Notation):
    def count(self, least: int, most: int | None) -> str:
        # `{,n}` and `{0,n}` are the same; both are written.
        return f"{{,{most}}}" if least == 0 and most in (2, 4, 6) else super().count(least, most)

    def text(self, text: str, needed: int) -> str:
        return '"' + "".join(map(self.character, text)) + '"'

    def character(self, character: str) -> str:
        if character in '"\\[]-^':
            return "\\" + character
        code = ord(character)
        # Escapes of every length, and characters as they are.
        if code < 0x20 or character == "b":
            return f"\\x{code:02X}"
        if code == 0xE9:
            return f"\\u{code:04X}"
        return f"\\U{code:08X}" if code == 0x1F64F else character

    def one(self, characters: str) -> str:
        return characters


class _Lark(_Notation):
    any_character = "/(?s:.)/"

    def tree(self, tree: Tree, names: list[str], needed: int) -> str:
        # llguidance refuses a repetition whose most is 0; it is the empty text.
        if isinstance(tree, Repeat) and tree.most == 0:
            return '""'
        return super().tree(tree, names, needed)

    def text(self, text: str, needed: int) -> str:
        if not text:
            return '""'
        row = " ".join(f"/[{self.character(c)}]/" for c in text)
        return row if len(text) == 1 else self.wrapped(row, _ROW, needed)

    def character(self, character: str) -> str:
        return character if character.isascii() and character.isalnum() else f"\\x{{{ord(character):X}}}"

    def one(self, characters: str) -> str:
        return f"/{characters}/"


class _Regex(_Notation):
    gap = ""
    group = "(?:"
    # What a dot leaves out differs.
    any_character = r"[\s\S]"

    def text(self, text: str, needed: int) -> str:
        row = "".join(map(self.character, text))
        return self.wrapped(row, _ITEM if len(text) == 1 else _ROW, needed)

    def character(self, character: str) -> str:
        return f"\\x{ord(character):02X}" if not character.isalnum() and character.isascii() else character

    def one(self, characters: str) -> str:
        return characters
