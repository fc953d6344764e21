"""The Jinja environment in which chat templates run.

Owns the sandbox: the settings that Hugging Face templates rely on (trimmed blocks, loop controls,
`raise_exception`, `strftime_now`, a `tojson` that writes JSON as it is), and the bounds in time and size that
jinja2's own sandbox lacks. Refuses unsafe attributes, mutation of its inputs, work past the deadline, and
strings past the size limit, before they are built. Imported only when a template is compiled, because
importing jinja2 takes time.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

TIME_LIMIT_S = 2.0
"""The longest that compiling or rendering may take, in seconds."""
SIZE_LIMIT: Final = 16 << 20
"""The most characters of a rendered prompt, or of any string on the way to it."""
_INTEGER_BITS: Final = 4096


class Refused(Exception):
    """The template called `raise_exception`: it does not accept the conversation."""


class Exceeded(Exception):
    """The template ran too long or asked for too much memory."""


class Sandbox(ImmutableSandboxedEnvironment):
    """A sandboxed environment whose loops, macros, operators, calls and filters are bounded."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _Generation])
        self._deadline = 0.0
        self.filters = {name: self._bounded_filter(name, function) for name, function in self.filters.items()}
        self.filters["tojson"] = _tojson
        self.globals = {
            name: self.globals[name] for name in ("range", "dict", "cycler", "joiner", "namespace")
        }
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        # Compiled templates join their output with this attribute: here macros and blocks are bounded.
        self.concat = self.join_texts  # type: ignore[method-assign]

    def compile_bounded(self, source: str, name: str) -> jinja2.Template:
        """Compiles a template so that every turn of a loop and every macro call checks the deadline.

        Raises:
            jinja2.TemplateSyntaxError: it does not parse.
        """
        self.start()
        tree = _Instrument().visit(self.parse(source, filename=name))
        code = self.compile(tree, name, name)
        return self.template_class.from_code(self, code, self.make_globals(None))

    def start(self) -> None:
        """Starts the clock of one compilation or rendering."""
        self._deadline = time.monotonic() + TIME_LIMIT_S

    def tick(self) -> None:
        """Checks the deadline."""
        if time.monotonic() > self._deadline:
            raise Exceeded(f"it takes longer than {TIME_LIMIT_S:g} s")

    def join_texts(self, parts: Iterable[Any]) -> str:
        """Joins texts after checking that the whole is not too large."""
        texts = [part if isinstance(part, str) else str(part) for part in parts]
        check_size(sum(map(len, texts)))
        return "".join(texts)

    def concatenate(self, *parts: Any) -> str:
        """The `~` operator."""
        return self.join_texts(parts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operator, refused before it makes something too large."""
        if operator == "*":
            for sequence, count in ((left, right), (right, left)):
                if isinstance(sequence, (str, bytes, list, tuple)) and isinstance(count, int):
                    check_size(len(sequence) * max(0, count))
        elif (
            operator == "+" and isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple))
        ):
            check_size(len(left) + len(right))
        elif operator == "%" and isinstance(left, str):
            _check_format(left, right if isinstance(right, tuple) else (right,))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * max(0, right))
        value = super().call_binop(context, operator, left, right)
        if isinstance(value, int):
            _check_bits(value.bit_length())
        return value

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """A call, refused when it is a string method that would make something too large."""
        method = getattr(__obj, "__wrapped__", __obj)
        text = getattr(method, "__self__", None)
        if isinstance(text, str):
            _check_text_function(method.__name__, text, args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def _bounded_filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that checks its arguments first; the marks jinja2 puts on functions are kept."""
        passes_context = getattr(function, "jinja_pass_arg", None) is not None

        @functools.wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            self.tick()
            front, (value, *rest) = (args[:1], args[1:]) if passes_context else ((), args)
            if isinstance(value, Iterator):
                value = self._collect(value)
            _check_text_function(name, value, rest, kwargs)
            return function(*front, value, *rest, **kwargs)

        return bounded

    def _collect(self, items: Iterator[Any]) -> list[Any]:
        """The items of a lazy filter, which could otherwise pile up without a limit in the next one."""
        collected, size = [], 0
        for item in items:
            size += len(item) if isinstance(item, (str, list, tuple)) else 1
            check_size(size)
            self.tick()
            collected.append(item)
        return collected


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks what a model wrote; the body is rendered."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The nodes between the two tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Instrument(NodeTransformer):
    """Puts a deadline check at the head of loops and macros and routes `~` through the bounded join.

    Both reach the environment by attribute, which template text cannot name or shadow.
    """

    def visit_For(self, node: nodes.For) -> nodes.Node:
        """A loop."""
        return self._with_tick(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        """A macro."""
        return self._with_tick(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        """The body handed to a macro."""
        return self._with_tick(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        """The `~` operator."""
        self.generic_visit(node)
        return _environment_call("concatenate", node.nodes, node.lineno)

    def _with_tick(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_environment_call("tick", [], node.lineno), lineno=node.lineno))
        return node  # type: ignore[no-any-return]


def _environment_call(name: str, args: list[nodes.Expr], line: int) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), args, [], None, None, lineno=line)


def check_size(size: int) -> None:
    """Raises `Exceeded` when something would have more than `SIZE_LIMIT` characters or entries."""
    if size > SIZE_LIMIT:
        raise Exceeded(f"it makes a text of more than {SIZE_LIMIT} characters")


def _check_bits(bits: int) -> None:
    if bits > _INTEGER_BITS:
        raise Exceeded(f"it computes a number of more than {_INTEGER_BITS} bits")


def _check_text_function(name: str, value: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuses a string method or filter whose result would be too large. `value` is what it works on."""
    given = [*args, *kwargs.values()]
    numbers = [item for item in given if isinstance(item, int)]
    texts = [item for item in given if isinstance(item, str)]
    largest = max(numbers, default=0)
    check_size(largest)
    size = len(value) if isinstance(value, (str, list, tuple)) else 0
    if name == "replace" and isinstance(value, str) and len(texts) >= 2:
        old, new = texts[0], texts[1]
        check_size(size + value.count(old) * max(0, len(new) - len(old)))
    elif name == "join":
        # As a method the separator is the value, as a filter the items are.
        items, separator = (
            (given[0] if given else (), value) if isinstance(value, str) and given else (value, "")
        )
        if not isinstance(separator, str) or isinstance(items, str):
            return
        separator = separator or (texts[0] if texts else "")
        if isinstance(items, (list, tuple)):
            check_size(sum(len(separator) + (len(item) if isinstance(item, str) else 1) for item in items))
    elif name in ("indent", "expandtabs") and isinstance(value, str):
        width = max([largest, 8 if name == "expandtabs" else 4, *map(len, texts)])
        check_size(size + width * (value.count("\n") + value.count("\t") + 1))
    elif name == "wordwrap" and isinstance(value, str):
        check_size(size + size // max(1, min(numbers, default=79)) * max(map(len, texts), default=1))
    elif name in ("format", "format_map") and isinstance(value, str):
        _check_format(value, given)
    elif name == "translate":
        raise Exceeded("str.translate can make a text of any size")


def _check_format(pattern: str, args: Sequence[Any]) -> None:
    """A width in a format, written out or passed as `*` or `{}`, asks for any amount of memory."""
    width, digits = 0, ""
    for char in [*pattern, " "]:
        if char.isascii() and char.isdigit():
            digits += char
        elif digits:
            width, digits = max(width, int(digits[:9])), ""
    numbers = [abs(item) for item in args if isinstance(item, int)]
    if "*" in pattern or "{" in pattern:
        width = max([width, *numbers])
    texts = sum(len(item) for item in args if isinstance(item, str))
    fields = pattern.count("%") + pattern.count("{")
    check_size(len(pattern) + fields * (width + texts))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is: no HTML escapes, characters unescaped, keys in their order."""
    if indent is not None and indent > 64:
        raise Exceeded("tojson is asked for an indent of more than 64")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: object) -> None:
    raise Refused(str(message))


def _strftime_now(pattern: object) -> str:
    from datetime import datetime

    return datetime.now().strftime(str(pattern)[:256])
