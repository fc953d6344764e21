"""The native core. Used by `colibri.engine` only; kept by hand and checked against the module by stubtest."""

from collections.abc import Callable, Sequence
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Calls",
    "CancelToken",
    "Conversion",
    "ConvertOptions",
    "Grammar",
    "GrammarState",
    "Model",
    "NativeError",
    "OpenOptions",
    "Sampling",
    "Session",
    "Vocabulary",
    "Watcher",
    "convert",
    "convert_dry_run",
    "doctor",
    "inspect",
    "machine",
    "plan",
    "plan_remote",
    "version",
]

class NativeError(Exception):
    """An error of the core; `args` are code, message, why and fix.

    For a grammar a fifth part lists its faults: `code`, `message`, `why`, `fix`, `line`, `column`, `text`
    (the line itself) and `pointer` of each.
    """

    args: (
        tuple[str, str, str | None, str | None]
        | tuple[str, str, str | None, str | None, list[dict[str, str | int | None]]]
    )

@final
class CancelToken:
    """Stops running work from any thread or signal handler."""

    def __new__(cls) -> CancelToken: ...
    def cancel(self) -> None:
        """Asks the work that holds this token to stop at the next layer boundary."""

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""

@final
class Watcher:
    """Follows work: stops it on request or by the clock, passes on progress and the interpreter's signals."""

    def __new__(
        cls,
        cancel: Sequence[CancelToken],
        timeout: float | None,
        on_progress: Callable[[str, int, int], object] | None,
    ) -> Watcher: ...
    @property
    def stopped(self) -> Literal["cancelled", "timeout"] | None:
        """Why it stopped the work, or None."""

@final
class OpenOptions:
    """Checked options of opening a model."""

    def __new__(
        cls, ram: int | str, ctx: int | str, threads: int | None, io: str, numerics: str, kernels: str
    ) -> OpenOptions: ...

@final
class ConvertOptions:
    """Checked options of a conversion."""

    def __new__(
        cls,
        experts: str,
        dense: str,
        embeddings: str,
        mtp: str,
        scale_rule: str,
        keep_mtp: bool,
        workers: int | None = None,
        repack: bool = False,
        verify: bool = False,
        delete_source: bool = False,
        source_name: str | None = None,
    ) -> ConvertOptions: ...

@final
class Conversion:
    """A conversion in progress: a build folder beside the destination, and the steps that are still to do."""

    def __new__(cls, source: str, destination: str, options: ConvertOptions) -> Conversion: ...
    def steps(self) -> str:
        """The steps, as JSON: `files` that must be there, `releases`, `bytes` the step writes, `done`."""

    def run_step(self, index: int, watcher: Watcher) -> None:
        """Runs one step; a step that is done already does nothing."""

    def finish(self, watcher: Watcher) -> str:
        """Writes what is left and gives the container its name; returns the report as JSON."""

@final
class Sampling:
    """Checked sampling parameters."""

    def __new__(
        cls,
        temperature: float,
        top_p: float,
        top_k: int,
        min_p: float,
        repeat_penalty: float,
        presence_penalty: float,
        frequency_penalty: float,
        seed: int,
    ) -> Sampling: ...

@final
class Model:
    """An open model."""

    def __new__(cls, path: str, options: OpenOptions, watcher: Watcher) -> Model: ...
    @property
    def kernels(self) -> str:
        """Name of the kernel set in use."""

    def plan(self) -> str:
        """The memory plan with the model's facts, as JSON."""

    def counters(self) -> tuple[int, int, int]:
        """Expert hits, expert misses, bytes of experts read."""

    def session(self) -> Session:
        """A new, empty session."""

    def logits(self, tokens: Sequence[int], watcher: Watcher) -> NDArray[np.float32]:
        """Logits [n, vocab] of every position."""

@final
class Session:
    """A KV cache with the logits of its last tokens."""

    @property
    def capacity(self) -> int:
        """The most tokens it can hold."""

    def __len__(self) -> int: ...
    def tokens(self) -> list[int]:
        """The tokens it holds."""

    def extend(self, tokens: Sequence[int], watcher: Watcher) -> None:
        """Appends tokens; stopped by the watcher it keeps what is done and raises `cancelled`."""

    def extend_all(self, tokens: Sequence[int], watcher: Watcher) -> None:
        """Appends at most 64 tokens and keeps the row of each, for `sample`; counts as decoding."""

    def rewind(self, length: int) -> None:
        """Forgets everything after the first `length` tokens; the kept rows of earlier tokens stay."""

    def sample(
        self, position: int, sampling: Sampling, state: GrammarState | None = None
    ) -> tuple[int, float]:
        """Chooses the token with the index `position` from its row; `state` is that before this token.

        Returns it with its log probability, mask aside.
        """

    def penalised(self, position: int, sampling: Sampling) -> NDArray[np.float32]:
        """A copy of the row [vocab] that the token at `position` is chosen from, after the penalties."""

    def choose(
        self,
        position: int,
        logits: NDArray[np.float32],
        sampling: Sampling,
        state: GrammarState | None = None,
    ) -> tuple[int, float]:
        """The same as `sample`, from a row that already holds the penalties."""

@final
class Grammar:
    """A compiled language over bytes. Errors are raised with all faults in the message."""

    @staticmethod
    def from_gbnf(text: str) -> Grammar:
        """Compiles GBNF; the start is `root`."""

    @staticmethod
    def from_regex(pattern: str) -> Grammar:
        """Compiles a pattern that the whole text must match."""

    @staticmethod
    def from_json_schema(
        text: str, lenient: bool = False, whitespace: Literal["compact", "flexible"] = "compact"
    ) -> Grammar:
        """Compiles a JSON schema; `lenient` ignores what cannot be enforced and notes it."""

    @staticmethod
    def from_tools(
        text: str,
        free: bool = False,
        parallel: bool = True,
        lenient: bool = False,
        whitespace: Literal["compact", "flexible"] = "compact",
        framing: tuple[str, str, str, str] | None = None,
    ) -> Grammar:
        """Compiles tools, a JSON list of `name` and `parameters`, to answers with calls in GLM's form.

        With `free` any text may stand before calls; `parallel` allows several. `framing` is the white space
        before an argument's name, before its value, before the end of a call, and between calls; without it
        a line break may stand there.
        """

    def to_gbnf(self) -> str:
        """The grammar as GBNF text, `root` first."""

    def notes(self) -> list[tuple[str, str, str]]:
        """What the author of a schema should know: JSON pointer, text, and `usual`, `remark` or `ignored`."""

    def specials(self, prefix: bytes) -> list[str]:
        """The special tokens of which one may follow, as the grammar names them."""

    def matched(self, text: bytes) -> int:
        """How many of the bytes, from the first on, are the beginning of a text of the language."""

    def accepts(self, text: bytes) -> bool:
        """Whether the bytes are a text of the language."""

    def can_end(self, prefix: bytes) -> bool:
        """The same as `accepts`, said of a prefix."""

    def allowed(self, prefix: bytes) -> bytes:
        """The bytes that may follow, in rising order; none when the prefix does not fit."""

    def forced(self, prefix: bytes, limit: int = 65536) -> bytes:
        """The bytes that must follow, at most `limit`; none when the prefix does not fit."""

@final
class Calls:
    """Functions whose calls are read out of texts."""

    def __new__(cls, functions: Sequence[tuple[str, str]]) -> Calls:
        """Functions by their names, and the JSON texts of their parameters."""

    def read(self, text: str) -> tuple[list[tuple[str, str]], str]:
        """The calls that a text begins with, each with its name and the JSON text of its arguments, and what
        follows them."""

@final
class Vocabulary:
    """The bytes of every token, and the special tokens, which no text produces.

    `special` maps texts such as `<|user|>` to ids; what `token_bytes` says of these ids is left aside.
    """

    def __new__(cls, token_bytes: Sequence[bytes], special: dict[str, int]) -> Vocabulary: ...
    def __len__(self) -> int: ...
    def lengths(self) -> NDArray[np.int64]:
        """Bytes of every token's text, [tokens]; none for special tokens."""

@final
class GrammarState:
    """A position in a grammar, moved token by token.

    The tokens of `stop_ids` end the text: they are allowed exactly when it can end, and nothing follows them.
    """

    def __new__(cls, grammar: Grammar, vocabulary: Vocabulary, stop_ids: Sequence[int]) -> GrammarState: ...
    def mask(self) -> NDArray[np.bool_]:
        """Which tokens may follow, [tokens of the vocabulary]."""

    def narrow(self, token: int) -> bool:
        """Lets only this token follow until the position moves; False when it may not follow."""

    def mask_counts(self) -> tuple[int, int | None]:
        """How many tokens may follow, and the only one where it is one."""

    def allows(self, token: int) -> bool:
        """Whether the token may follow."""

    def accept(self, token: int) -> bool:
        """Takes a token; False, and nothing changed, when it may not follow."""

    def accept_text(self, text: bytes) -> bool:
        """Takes bytes as text, whatever tokens they spell, each as if it were a token; False, and nothing
        changed, when they may not follow."""

    def forced(self, limit: int) -> bytes:
        """The bytes that must follow, at most `limit`; none where the text can end."""

    def allowed_bytes(self) -> bytes:
        """The bytes that may follow, in rising order."""

    @property
    def can_end(self) -> bool:
        """Whether the text can end here; True once it has."""

    @property
    def finished(self) -> bool:
        """Whether a stop token was taken."""

    @property
    def length(self) -> int:
        """How many tokens were taken."""

    def rewind(self, length: int) -> None:
        """Goes back to where `length` tokens were taken."""

def plan(path: str, options: OpenOptions, measure: bool = False) -> str:
    """Where a model that is not loaded would live, and how fast that would be, as JSON.

    `measure` reads a second's worth of weights and of memory.
    """

def plan_remote(config: str, listing: str, options: OpenOptions) -> str:
    """The same for a model that is not here.

    `config` is its `config.json`, `listing` its files, index and manifest.
    """

def doctor(path: str | None, options: OpenOptions, deep: bool, watcher: Watcher) -> str:
    """Checks the machine and, unless `path` is None, a model; the verdicts as JSON.

    `deep` compares digests.
    """

def inspect(path: str) -> str:
    """A summary of a model folder from its headers, as JSON."""

def convert(source: str, destination: str, options: ConvertOptions, watcher: Watcher) -> str:
    """Converts a checkpoint that lies in a folder; returns the report as JSON."""

def convert_dry_run(source: str, destination: str, options: ConvertOptions) -> str:
    """What a conversion would write, and how long that would take, as JSON; writes nothing."""

def machine() -> str:
    """Facts about this machine, as JSON."""

def version() -> str:
    """Version, build and kernel set, as JSON."""
