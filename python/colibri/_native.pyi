"""The native core. Used by `colibri.engine` only; kept by hand and checked against the module by stubtest."""

from collections.abc import Callable, Sequence
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "CancelToken",
    "Conversion",
    "ConvertOptions",
    "Model",
    "NativeError",
    "OpenOptions",
    "Sampling",
    "Session",
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
    """An error of the core; `args` are code, message, why, fix."""

    args: tuple[str, str, str | None, str | None]

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
    """A KV cache with the logits of its last position."""

    @property
    def capacity(self) -> int:
        """The most tokens it can hold."""

    def __len__(self) -> int: ...
    def tokens(self) -> list[int]:
        """The tokens it holds."""

    def extend(self, tokens: Sequence[int], watcher: Watcher) -> None:
        """Appends tokens; stopped by the watcher it keeps what is done and raises `cancelled`."""

    def rewind(self, length: int) -> None:
        """Forgets everything after the first `length` tokens."""

    def sample(self, sampling: Sampling) -> tuple[int, float]:
        """Chooses the next token from the last row; returns it with its log probability."""

    def penalised(self, sampling: Sampling) -> NDArray[np.float32]:
        """A copy of the last row [vocab] after the penalties."""

    def choose(self, logits: NDArray[np.float32], sampling: Sampling) -> tuple[int, float]:
        """Chooses the next token from a row that already holds the penalties."""

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
