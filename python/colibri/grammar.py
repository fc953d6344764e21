"""Grammars: which texts an answer may be, from GBNF, a JSON schema, a pattern or a list of tools.

Owns the public `Grammar`, which needs no model, and the vocabulary through which a grammar judges tokens.
Refuses what it cannot enforce, by name and place, unless asked to be lenient; then it says so in `notes`.
What must hold: `accepts`, `forced` and `mask` tell what a generation with this grammar does, byte for byte.
"""

from __future__ import annotations

import contextlib
import json
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from colibri import engine
from colibri.engine import NativeGrammar, Vocabulary
from colibri.errors import ColibriError, GrammarError, error, invalid_value, shown
from colibri.files import read_file, reason, user_path
from colibri.schema_source import schema_text
from colibri.setting_kinds import WHITESPACES
from colibri.tokenizer import Tokenizer
from colibri.tools import Framing, ToolSet, tool_set

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from colibri.model import Model

FILE_LIMIT: Final = 4 << 20
"""The largest grammar file that is read, in bytes; the core takes no more."""


class Grammar:
    """A compiled grammar. Any number of generations, in any number of threads, may use it.

    Attributes:
        notes: what to know about the schema or the tools it was made of, each with its JSON pointer.
        ignored: those of the notes that name what was asked for and is not enforced.
        usual: those of the notes that hold for most schemas.
    """

    __slots__ = ("_native", "_what", "ignored", "notes", "usual")

    def __init__(self, native: NativeGrammar, what: str, remarks: tuple[str, ...] = ()) -> None:
        """Wraps a compiled grammar; use one of the `from_` constructors.

        Args:
            native: the compiled grammar.
            what: where it comes from, for messages.
            remarks: notes that come before those of the compiler.
        """
        self._native = native
        self._what = what
        noted = [(f"{place}: {text}", weight) for place, text, weight in native.notes()]
        self.notes: tuple[str, ...] = (*remarks, *(note for note, _ in noted))
        self.ignored: tuple[str, ...] = tuple(note for note, weight in noted if weight == "ignored")
        self.usual: tuple[str, ...] = tuple(note for note, weight in noted if weight == "usual")

    @staticmethod
    def from_gbnf(text: str) -> Grammar:
        """Compiles GBNF, the notation of llama.cpp; `root` is where it starts.

        Raises:
            GrammarError: with every fault of the text, its line and its column.
        """
        with _hinting(_gbnf_hint(_text("text", text))):
            return Grammar(engine.compile_grammar("gbnf", text), "GBNF")

    @staticmethod
    def from_file(path: str | os.PathLike[str]) -> Grammar:
        """Compiles the GBNF of a file.

        Raises:
            InvalidValue: the file cannot be read, is empty or is not UTF-8.
            GrammarError: see `from_gbnf`.
        """
        if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
            raise invalid_value("path", path, "the path of a file")
        text = read_grammar(os.fspath(path))
        hint = f"Grammar.from_json_schema(Path({os.fspath(path)!r}).read_text())"
        with _hinting(f"this looks like a JSON schema: {hint}" if is_object(text) else None):
            return Grammar(engine.compile_grammar("gbnf", text), Path(path).name)

    @staticmethod
    def from_json_schema(
        schema: Mapping[str, Any] | bool | str | Any, *, lenient: bool = False, whitespace: str = "compact"
    ) -> Grammar:
        """Compiles a JSON schema: the grammar of the JSON texts it allows.

        Args:
            schema: a mapping or a truth value, JSON text, or a class or object with `model_json_schema()`, as
                pydantic's models have. Properties come in the order of their definition. The wrapper of
                OpenAI's API, with `name` and `schema`, is taken off.
            lenient: whether keywords that cannot be enforced are ignored, and named in `notes`.
            whitespace: `compact` (none between the signs), or `flexible`.

        Raises:
            GrammarError: `schema_unsupported` names what cannot be enforced, with its JSON pointer.
        """
        text = _text("schema", schema_text(schema))
        _check_options(lenient, whitespace)
        with _hinting(_schema_hint(text)):
            return Grammar(engine.compile_grammar("json_schema", text, lenient, whitespace), "JSON schema")

    @staticmethod
    def from_regex(pattern: str) -> Grammar:
        """Compiles a pattern that the whole text must match; ECMAScript's notation, without lookaround.

        Raises:
            GrammarError: the pattern is faulty or uses what cannot be enforced.
        """
        return Grammar(engine.compile_grammar("regex", _text("pattern", pattern)), "pattern")

    @staticmethod
    def from_tools(
        tools: Sequence[Mapping[str, Any]] | ToolSet,
        style: str = "glm",
        *,
        choice: str | Mapping[str, Any] | None = "auto",
        parallel: bool = True,
        lenient: bool = False,
        whitespace: str = "compact",
        framing: Framing | None = None,
    ) -> Grammar:
        """Compiles a list of tools: free text, and calls in the model's own form.

        Args:
            tools: descriptions of functions, in the OpenAI format.
            style: the form of calls; `glm` is known.
            choice: `auto` (text, calls, or both), `required` (at least one call and no text before it), or a
                name, or the OpenAI form of one: a call of this function.
            parallel: whether several calls may follow each other.
            lenient: see `from_json_schema`.
            whitespace: see `from_json_schema`.
            framing: the white space of a model's calls; without it a line break may stand where some models
                write one.

        Raises:
            InvalidValue: a description is malformed, or `choice` names none of them.
            GrammarError: what a schema asks for cannot be enforced.
        """
        _check_options(lenient, whitespace)
        chosen = tool_set(tools)
        if style not in STYLES:
            raise invalid_value("style", style, f"one of {', '.join(map(repr, STYLES))}")
        if not isinstance(parallel, bool):
            raise invalid_value("parallel", parallel, "True or False")
        names, free = chosen.chosen(choice)
        text = json.dumps(chosen.functions(names), ensure_ascii=False)
        native = engine.compile_grammar("tools", text, free, parallel, lenient, whitespace, framing)
        return Grammar(native, "tools", chosen.notes)

    @property
    def native(self) -> NativeGrammar:
        """The compiled grammar."""
        return self._native

    def accepts(self, text: str | bytes) -> bool:
        """Whether the whole text belongs to the language."""
        data = _bytes("text", text)
        with engine.translated():
            return self._native.accepts(data)

    def forced(self, prefix: str | bytes = b"") -> bytes:
        """The bytes that must follow a prefix; none where several may, where the text can end, or where the
        prefix does not fit."""
        data = _bytes("prefix", prefix)
        with engine.translated():
            return self._native.forced(data)

    def allowed(self, prefix: str | bytes = b"") -> bytes:
        """The bytes of which one may follow a prefix, in rising order."""
        data = _bytes("prefix", prefix)
        with engine.translated():
            return self._native.allowed(data)

    def specials(self, prefix: str | bytes = b"") -> tuple[str, ...]:
        """The special tokens of which one may follow a prefix, as the grammar names them."""
        data = _bytes("prefix", prefix)
        with engine.translated():
            return tuple(self._native.specials(data))

    def matched(self, text: str | bytes) -> int:
        """How many bytes of the text, from the first on, are the beginning of a text of the language."""
        data = _bytes("text", text)
        with engine.translated():
            return self._native.matched(data)

    def to_gbnf(self) -> str:
        """The grammar in GBNF, the notation of llama.cpp, to be read, changed or used elsewhere.

        Raises:
            GrammarError: the text would be longer than a grammar may be.
        """
        with engine.translated():
            return self._native.to_gbnf()

    def mask(self, tokens: Model | Tokenizer, prefix: str | bytes = b"") -> NDArray[np.bool_]:
        """Which tokens may follow a prefix, bool [vocab]: all of a model's logits, or of a tokenizer's ids.

        End tokens of a model are allowed exactly where the text can end. The prefix is read as text, also
        where it spells a special token; only a prefix that does not fit as text is read as tokens.

        Raises:
            InvalidValue: the prefix does not fit the grammar.
            ModelError: the model has no tokenizer.
        """
        tokenizer, size, stop_ids = _vocabulary_parts(tokens)
        state = engine.grammar_state(self._native, vocabulary_of(tokenizer, size), sorted(stop_ids))
        data = _bytes("prefix", prefix)
        with engine.translated():
            if not state.accept_text(data) and not all(map(state.accept, tokenizer.encode_bytes(data))):
                raise invalid_value("prefix", prefix, "the beginning of a text of the grammar")
            return state.mask()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Grammar cannot be pickled or copied")

    def __repr__(self) -> str:
        return f"Grammar({self._what})"


STYLES: Final = ("glm",)
"""The forms of tool calls that are known."""

_VOCABULARIES: weakref.WeakKeyDictionary[Tokenizer, dict[int, Vocabulary]] = weakref.WeakKeyDictionary()


def vocabulary_of(tokenizer: Tokenizer, size: int) -> Vocabulary:
    """The vocabulary of a tokenizer with `size` ids; made once."""
    made = _VOCABULARIES.setdefault(tokenizer, {})
    if size not in made:
        pieces = [tokenizer.piece(token) for token in range(size)]
        # Only special tokens have no text of their own; a grammar may name any added token.
        texts = [b"" if special else data for data, special in pieces]
        special = {data.decode("utf-8"): token for token, (data, special) in enumerate(pieces) if special}
        with engine.translated():
            made[size] = Vocabulary(texts, special)
    return made[size]


def read_grammar(path: str, what: str = "grammar", *, regular: bool = True) -> str:
    """The text of a file.

    Args:
        path: the file.
        what: what it is to hold, for messages.
        regular: whether pipes and devices are refused.

    Raises:
        InvalidValue: it is missing, a folder, empty, or not UTF-8 text.
    """
    try:
        text = read_file(user_path(path), FILE_LIMIT, regular=regular).decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        fix = f"give the path of a text file with the {what}"
        why = f"it is not UTF-8 text: byte {fault.start:,} does not belong to a character"
        raise error("invalid_value", f"{path} holds no {what}", why, fix) from None
    except OSError as fault:
        raise error(
            "invalid_value", f"cannot read the {what} {path}", reason(fault), _path_hint(path, what)
        ) from None
    return not_empty(text, path, what)


def not_empty(text: str, place: str, what: str = "grammar") -> str:
    """The text of a grammar; an `InvalidValue` when there is nothing in it."""
    if not text.strip():
        raise error("invalid_value", f"{place} holds no {what}", "it is empty", f"write the {what} into it")
    return text


def no_grammar(value: object) -> ColibriError:
    """The error for a grammar that is none; names the constructor that takes what was given."""
    maker = "from_gbnf, from_file, from_json_schema, from_regex or from_tools"
    if isinstance(value, str):
        maker = "from_json_schema" if is_object(value) else "from_gbnf" if "::=" in value else maker
    elif isinstance(value, os.PathLike):
        maker = "from_file"
    elif isinstance(value, Mapping) or callable(getattr(value, "model_json_schema", None)):
        maker = "from_json_schema"
    return error(
        "invalid_value",
        f"grammar is {shown(value)}",
        "grammar must be a Grammar, or None",
        f"make one with Grammar.{maker}",
    )


def is_object(text: str) -> bool:
    """Whether a text begins as an object of JSON does, and no grammar."""
    return text.lstrip().startswith("{") and "::=" not in text


def _path_hint(path: str, what: str) -> str:
    """What to do about a path that cannot be read: it may be the text itself, or of another kind."""
    if "::=" in path:
        other = "--grammar takes it, and Grammar.from_gbnf in Python"
        return f"this looks like the text of a grammar: {other}"
    if is_object(path):
        return "this looks like a JSON schema: --json-schema takes it, and Grammar.from_json_schema in Python"
    if what == "grammar" and ("=" in path or "\n" in path):
        return 'the text of a grammar has `::=` behind the names of rules:  root ::= "a"'
    return f"give the path of a text file with the {what}"


def _gbnf_hint(text: str) -> str | None:
    """What a text without rules may be in the place of a grammar."""
    if is_object(text):
        return "this looks like a JSON schema: Grammar.from_json_schema takes it"
    if "::=" not in text and text.strip() and "\n" not in text and "=" not in text:
        return f'a rule is written  root ::= "a"; for a file: Grammar.from_file({text!r})'
    return None


def _schema_hint(text: str) -> str | None:
    """What a text that is no JSON may be in the place of a schema."""
    if text.lstrip().startswith(("{", "[")):
        return None
    if "::=" in text:
        return "this looks like a grammar: Grammar.from_gbnf takes it"
    if text.strip() and "\n" not in text:
        return f"for a file: Grammar.from_json_schema(Path({text!r}).read_text())"
    return None


@contextlib.contextmanager
def _hinting(hint: str | None) -> Iterator[None]:
    """Adds what to do to an error about a text that cannot be read."""
    try:
        yield
    except GrammarError as fault:
        if hint is not None and fault.code == "grammar_syntax":
            fault.fix, fault.args = hint, (*fault.args[:3], hint)
            fault.faults = ({**fault.faults[0], "fix": hint}, *fault.faults[1:])
        raise


def _vocabulary_parts(tokens: Model | Tokenizer) -> tuple[Tokenizer, int, frozenset[int]]:
    if isinstance(tokens, Tokenizer):
        return tokens, tokens.id_limit, frozenset()
    tokenizer = getattr(tokens, "tokenizer", None)
    if not isinstance(tokenizer, Tokenizer):
        raise invalid_value("tokens", tokens, "a Model or a Tokenizer")
    return tokenizer, tokens.info.vocab_size, tokens.stop_ids


def _check_options(lenient: object, whitespace: object) -> None:
    if not isinstance(lenient, bool):
        raise invalid_value("lenient", lenient, "True or False")
    if whitespace not in WHITESPACES:
        raise invalid_value("whitespace", whitespace, f"one of {', '.join(map(repr, WHITESPACES))}")


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise invalid_value(name, value, "a text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise invalid_value(name, value, "made of characters, without lone surrogates") from None
    return value


def _bytes(name: str, value: object) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    return _text(name, value).encode("utf-8")
