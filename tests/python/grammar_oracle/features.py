"""What a grammar has that is hard to parse."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .tree import Characters, Choice, Repeat, Row, Rule, Text, Tree, TreeGrammar

Known = list[bool]


def ends(rules: tuple[Tree, ...]) -> Known:
    """For each rule whether some text fits it."""
    return _least_fixed_point(rules, has_end)


def empties(rules: tuple[Tree, ...]) -> Known:
    """For each rule whether the empty text fits it."""
    return _least_fixed_point(rules, has_empty)


def has_end(tree: Tree, rules: Known) -> bool:
    """Whether some text fits a tree, where that is known of the rules."""
    return not isinstance(tree, Rule | Row | Choice | Repeat) or _composed(tree, rules, has_end)


def has_empty(tree: Tree, rules: Known) -> bool:
    """Whether the empty text fits a tree, where that is known of the rules."""
    return tree == Text("") or _composed(tree, rules, has_empty)


def _composed(tree: Tree, rules: Known, of: Callable[[Tree, Known], bool]) -> bool:
    match tree:
        case Row(parts):
            return all(of(part, rules) for part in parts)
        case Choice(parts):
            return any(of(part, rules) for part in parts)
        case Repeat(body, least, _):
            return least == 0 or of(body, rules)
        case Rule(number):
            return rules[number]
    return False


def _least_fixed_point(rules: tuple[Tree, ...], of: Callable[[Tree, Known], bool]) -> Known:
    known = [False] * len(rules)
    while True:
        found = [of(rule, known) for rule in rules]
        if found == known:
            return known
        known = found


def features(grammar: TreeGrammar) -> set[str]:
    """The names of what the part of a grammar has that its start can reach."""
    rules = grammar.rules
    empty = empties(rules)
    calls = _closure([{part.number for part in _parts(rule) if isinstance(part, Rule)} for rule in rules])
    left = _closure([_corner(rule, empty, first=True) for rule in rules])
    right = _closure([_corner(rule, empty, first=False) for rule in rules])
    reached = {0} | calls[0]
    found = {name for rule in reached for part in _parts(rules[rule]) for name in _of_part(part, empty)}
    for rule in reached & {rule for rule in range(len(rules)) if rule in calls[rule]}:
        found.add("left recursion" if rule in left[rule] else "recursion that is not left")
        found.add("right recursion" if rule in right[rule] else "recursion that is not right")
        if any(rule in calls[other] for other in calls[rule] - {rule}):
            found.add("mutual recursion")
    return found


def _of_part(part: Tree, empty: Known) -> Iterator[str]:
    match part:
        case Characters(_, True):
            yield "negated class"
        case Characters(ranges) if any(not a.isascii() or not b.isascii() for a, b in ranges):
            yield "class beyond ASCII"
        case Text(text) if not text.isascii():
            yield "text beyond ASCII"
        case Choice(parts) if len(set(parts)) < len(parts) or sum(has_empty(p, empty) for p in parts) > 1:
            yield "ambiguity"
        case Repeat(body, least, most):
            yield "{m,}" if most is None else "{,n}" if least == 0 else "{m}" if least == most else "{m,n}"
            if has_empty(body, empty):
                yield "empty body of a repetition"
                if most is None:
                    yield "empty body under a star"
            if isinstance(body, Repeat):
                yield "repetition of a repetition"


def _parts(tree: Tree) -> Iterator[Tree]:
    yield tree
    match tree:
        case Row(parts) | Choice(parts):
            for part in parts:
                yield from _parts(part)
        case Repeat(body):
            yield from _parts(body)


def _corner(tree: Tree, empty: Known, *, first: bool) -> set[int]:
    """The rules that may stand first, or last, in a tree."""
    match tree:
        case Rule(number):
            return {number}
        case Choice(parts):
            return {rule for part in parts for rule in _corner(part, empty, first=first)}
        case Repeat(body):
            return _corner(body, empty, first=first)
        case Row(parts):
            found: set[int] = set()
            for part in parts if first else reversed(parts):
                found |= _corner(part, empty, first=first)
                if not has_empty(part, empty):
                    break
            return found
    return set()


def _closure(steps: list[set[int]]) -> list[set[int]]:
    """Where any number of steps, at least one, leads."""
    while True:
        further = [one.union(*(steps[to] for to in one)) for one in steps]
        if further == steps:
            return steps
        steps = further
