"""The native core, seen from Python: the only module that imports `colibri._native`.

Owns the translation of native errors into `colibri.errors`, of native JSON into the values of
`colibri.results`, and the rule that one generation runs at a time on a model. Refuses use after close. What
must hold: no native error leaves this module untranslated, and every call that computes or reads releases the
interpreter lock (the binding does).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from colibri import _native
from colibri._native import Calls as Calls
from colibri._native import CancelToken as CancelToken
from colibri._native import Grammar
from colibri._native import GrammarState as GrammarState
from colibri._native import Sampling as Sampling
from colibri._native import Vocabulary as Vocabulary
from colibri._native import Watcher as Watcher
from colibri.arguments import COUNT, INTEGER_MAX, SECONDS
from colibri.arguments import Range as Limits
from colibri.errors import ColibriError, GrammarError, error, in_python, invalid_value
from colibri.results import (
    Check,
    Machine,
    ModelInfo,
    PerToken,
    Plan,
    PlanReport,
    Range,
    ScalePlacement,
    Tier,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ProgressCallback = Callable[[str, int, int], object]
"""`f(phase, done, total)`, at most ten times a second; returning False stops the work.

Phases: `load` and `convert` count bytes, `prefill` counts tokens, `decode` counts layers.
"""

POLL_SECONDS: Final = 0.05
"""How often something that waits looks whether it shall stop."""

NativeGrammar = Grammar
"""A compiled grammar of the core."""

NATIVE_PARTS: Final = 4
"""Parts of a native error: code, message, why and fix. One of a grammar has its faults behind them."""

ROWS_MAX: Final = 64
"""The most tokens whose rows one forward keeps."""

Size = int | str
"""Bytes, or text such as `20GB`, `20GiB`, `75%`, `auto`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """How a model is opened; see `colibri.load` for the meaning of each field."""

    ram: Size = "auto"
    ctx: int | str = "auto"
    threads: int | None = None
    io: str = "auto"
    numerics: str = "quantized"
    kernels: str = "auto"

    def native(self) -> _native.OpenOptions:
        """The options as the core takes them, checked."""
        for name in ("io", "numerics", "kernels"):
            if not isinstance(getattr(self, name), str):
                raise invalid_value(name, getattr(self, name), "a text such as 'auto'")
        ram, ctx = (
            value if isinstance(value, str) else limits.check(name, value)
            for name, value, limits in (("ram", self.ram, _BYTES), ("ctx", self.ctx, _TOKENS))
        )
        threads = None if self.threads is None else COUNT.check("threads", self.threads)
        with translated():
            return _native.OpenOptions(ram, ctx, threads, self.io, self.numerics, self.kernels)


@dataclasses.dataclass(frozen=True, slots=True)
class Version:
    """Which core this is.

    Attributes:
        version: the package's version.
        build: target and profile of the core, such as `x86_64-linux release`.
        kernels: the kernel set this processor would get.
    """

    version: str
    build: str
    kernels: str


_BYTES = Limits(1, 2**63 - 1, whole=True, otherwise="or a text such as '20GB'")
_TOKENS = Limits(1, INTEGER_MAX, whole=True, otherwise="or 'auto'")


def watch(
    cancel: Sequence[CancelToken] = (),
    timeout: float | None = None,
    on_progress: ProgressCallback | None = None,
) -> Watcher:
    """A watcher for one piece of work, its parts checked.

    Raises:
        InvalidValue: naming the part that is of another kind.
    """
    for token in cancel:
        if not isinstance(token, CancelToken):
            raise invalid_value("cancel", token, "a CancelToken")
    if on_progress is not None and not callable(on_progress):
        raise invalid_value("on_progress", on_progress, "a function of phase, done and total")
    seconds = None if timeout is None else SECONDS.check("timeout", timeout)
    with translated():
        return Watcher(cancel, seconds, on_progress)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turns native errors raised inside into the classes of `colibri.errors`."""
    try:
        yield
    except _native.NativeError as fault:
        raise from_native(fault) from None


def from_native(fault: _native.NativeError) -> ColibriError:
    """The error for a native one, which carries code, message, why and fix, and the faults of a grammar."""
    code, message, why, fix, *more = fault.args
    made = error(code, message, why, fix)
    if more and isinstance(made, GrammarError):
        made.faults = tuple(in_python(one) for one in more[0])
    return made


def version() -> Version:
    """Version, build and kernel set of the core."""
    return Version(**json.loads(_native.version()))


def machine() -> Machine:
    """Facts about this machine: memory, control group, cores, kernel sets."""
    return _machine(json.loads(_native.machine()))


def inspect(path: str) -> dict[str, Any]:
    """Reads and sums up headers; see `colibri.inspect`."""
    with translated():
        summary: dict[str, Any] = json.loads(_native.inspect(path))
    return {**summary, "model": _model_info(summary["model"], path).to_dict()}


def plan(path: str, options: Options, measure: bool) -> PlanReport:
    """Plans without loading; see `colibri.plan`."""
    checked = options.native()
    with translated():
        return _plan_report(json.loads(_native.plan(path, checked, measure)), path, options.threads)


def plan_remote(name: str, config: dict[str, Any], listing: dict[str, Any], options: Options) -> PlanReport:
    """Plans a model that is not here; see `colibri.plan_remote`.

    Args:
        name: what the model is called.
        config: its `config.json`.
        listing: `files` with names and bytes; and `weight_map`, `total_size` and `manifest` where there are.
        options: as for loading.
    """
    checked = options.native()
    with translated():
        value = json.loads(_native.plan_remote(json.dumps(config), json.dumps(listing), checked))
    value["model"]["name"] = name
    return _plan_report(value, name, options.threads)


def doctor(path: str | None, options: Options, deep: bool, watcher: Watcher) -> list[Check]:
    """The core's checks of machine and model; see `colibri.doctor`."""
    checked = options.native()
    with translated():
        report = json.loads(_native.doctor(path, checked, deep, watcher))
    return [Check(**{**check, "details": tuple(check["details"])}) for check in report["checks"]]


def convert(source: str, destination: str, options: dict[str, Any], watcher: Watcher) -> dict[str, Any]:
    """Runs the native converter on a folder; see `colibri.convert`."""
    with translated():
        checked = _native.ConvertOptions(**options)
        return _conversion_summary(_native.convert(source, destination, checked, watcher))


def convert_dry_run(source: str, destination: str, options: dict[str, Any]) -> dict[str, Any]:
    """What the native converter would write, with its steps as `schedule`; writes nothing."""
    with translated():
        checked = _native.ConvertOptions(**options)
        return _conversion_summary(_native.convert_dry_run(source, destination, checked))


# Parts of the core's report that are numbers without a unit in their names -> the unit.
_CONVERSION_UNITS = {
    "space": {"needed": "needed_bytes", "free": "free_bytes"},
    "estimate": {"low": "low_seconds", "high": "high_seconds"},
}


def _conversion_summary(text: str) -> dict[str, Any]:
    """The core's report of a conversion, with units in the names, and None for what is not known yet."""
    report: dict[str, Any] = json.loads(text)
    for name in ("version", "destination", "dry_run"):
        report.pop(name, None)
    steps = report.pop("schedule", [])
    if steps:
        report["schedule"] = [_step(one) for one in steps]
    for part, units in _CONVERSION_UNITS.items():
        if report[part] is not None:
            report[part] = {units.get(name, name): value for name, value in report[part].items()}
    for file in (*report["shards"], *report["files"]):
        file["sha256"] = file["sha256"] or None
    return report


def compile_grammar(kind: str, *arguments: Any) -> NativeGrammar:
    """Compiles with the constructor `from_KIND` of the native grammar.

    Raises:
        GrammarError: the text is faulty or not supported.
    """
    compile_native: Callable[..., NativeGrammar] = getattr(NativeGrammar, f"from_{kind}")
    with translated():
        return compile_native(*arguments)


def grammar_faults(kind: str, *arguments: Any) -> list[dict[str, Any]]:
    """Every fault that `compile_grammar` meets, in the core's words; see `GrammarError.faults`."""
    try:
        getattr(NativeGrammar, f"from_{kind}")(*arguments)
    except _native.NativeError as fault:
        if len(fault.args) == NATIVE_PARTS:
            raise from_native(fault) from None
        return list(fault.args[NATIVE_PARTS])
    return []


def grammar_state(grammar: NativeGrammar, vocabulary: Vocabulary, stop_ids: Sequence[int]) -> GrammarState:
    """The position before any token; each of `stop_ids` may end the text."""
    with translated():
        return GrammarState(grammar, vocabulary, list(stop_ids))


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One step of a conversion.

    Attributes:
        files: weight files of the source that must be there; releases: those that no later step needs.
        bytes: what the step writes.
        done: whether all of it is safe on the disk.
    """

    files: tuple[str, ...]
    releases: tuple[str, ...]
    bytes: int
    done: bool


def _step(value: dict[str, Any]) -> Step:
    return Step(tuple(value["files"]), tuple(value["releases"]), value["bytes"], value["done"])


class Conversion:
    """A conversion step by step: opened anew it goes on where it was stopped."""

    __slots__ = ("_native",)

    def __init__(self, source: str, destination: str, options: dict[str, Any]) -> None:
        with translated():
            self._native = _native.Conversion(source, destination, _native.ConvertOptions(**options))

    def steps(self) -> list[Step]:
        """The steps, in order."""
        with translated():
            steps = json.loads(self._native.steps())
        return [_step(one) for one in steps]

    def run_step(self, index: int, watcher: Watcher) -> None:
        """Runs a step; one that is done already does nothing."""
        with translated():
            self._native.run_step(index, watcher)

    def finish(self, watcher: Watcher) -> dict[str, Any]:
        """Gives the container its name; returns the report."""
        with translated():
            return _conversion_summary(self._native.finish(watcher))


class Engine:
    """An open native model with its generation lock.

    Closing is idempotent; use after close is a `ValueError`.
    """

    def __init__(self, native: _native.Model, path: str, threads: int | None) -> None:
        self._native: _native.Model | None = native
        self._lock = threading.Lock()
        self._owner: threading.Thread | None = None
        self.plan = _plan(json.loads(native.plan()), path, threads)
        self.info = self.plan.model
        self.kernels = native.kernels

    @staticmethod
    def open(path: str, options: Options, on_progress: ProgressCallback | None) -> Engine:
        """Plans, checks the projected peak against the memory, and loads the resident weights."""
        checked, watcher = options.native(), watch(on_progress=on_progress)
        with translated():
            return Engine(_native.Model(path, checked, watcher), path, options.threads)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._native is None

    def native(self) -> _native.Model:
        """The native model, or `ValueError` after close."""
        if self._native is None:
            raise ValueError("the model is closed")
        return self._native

    def close(self) -> None:
        """Waits for a generation that runs in another thread, then lets go of the weights."""
        if self._native is None:
            return
        if self._owner is threading.current_thread():
            # A stream of this very thread is suspended: waiting for it would never end. It stops at its next
            # step.
            self._native = None
            return
        with self._lock:
            self._native = None

    def acquire(
        self, wait: bool, timeout: float | None = None, cancel: Sequence[CancelToken] = ()
    ) -> Literal["timeout", "cancelled"] | None:
        """Takes the model for one generation.

        Returns:
            None, or why the wait for another generation was given up: the model is not taken then.

        Raises:
            Busy: another thread generates and `wait` is false, or this thread has an unfinished stream.
        """
        if self._owner is threading.current_thread():
            raise error(
                "queue_full",
                "this thread already has an unfinished stream on this model",
                "one generation runs at a time on a model; waiting for oneself would never end",
                "finish the stream or close() it first",
            )
        if not self._lock.acquire(blocking=False):
            if not wait:
                raise error(
                    "queue_full",
                    "the model is busy with another generation",
                    "one generation runs at a time on a model, and wait=False was given",
                    "call again later, or leave wait=True",
                )
            given_up = self._wait(timeout, cancel)
            if given_up is not None:
                return given_up
        self._owner = threading.current_thread()
        if self._native is None:
            self.release()
            raise ValueError("the model is closed")
        return None

    def _wait(
        self, timeout: float | None, cancel: Sequence[CancelToken]
    ) -> Literal["timeout", "cancelled"] | None:
        """Waits for the lock; a reason means that it was given up and not taken."""
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        while not self._lock.acquire(timeout=max(0.0, min(POLL_SECONDS, deadline - time.monotonic()))):
            if any(token.cancelled for token in cancel):
                return "cancelled"
            if time.monotonic() >= deadline:
                return "timeout"
        return None

    def release(self) -> None:
        """Gives the model back."""
        self._owner = None
        self._lock.release()

    def session(self) -> EngineSession:
        """A new, empty KV cache on this model."""
        with translated():
            return EngineSession(self.native().session(), self)

    def logits(self, tokens: Sequence[int], watcher: Watcher) -> NDArray[np.float32]:
        """Logits [n, vocab] of every position; the caller owns the array."""
        with translated():
            return self.native().logits(tokens, watcher)

    def counters(self) -> tuple[int, int, int]:
        """Expert hits, expert misses and bytes read since the model was opened."""
        native = self._native
        return (0, 0, 0) if native is None else native.counters()


class EngineSession:
    """A KV cache. Not for use by two threads at once; the engine's lock sees to that."""

    __slots__ = ("_engine", "_native")

    def __init__(self, native: _native.Session, engine: Engine) -> None:
        self._native = native
        self._engine = engine

    @property
    def capacity(self) -> int:
        """The most tokens the cache holds."""
        return self._native.capacity

    def tokens(self) -> list[int]:
        """The tokens in the cache."""
        return self._native.tokens()

    def __len__(self) -> int:
        return len(self._native)

    def rewind(self, length: int) -> None:
        """Forgets everything after the first `length` tokens."""
        with translated():
            self._native.rewind(length)

    def extend(self, tokens: Sequence[int], watcher: Watcher, *, every_row: bool = False) -> bool:
        """Appends tokens; returns False when the watcher stopped it, and then holds what was done.

        With `every_row`, for at most `ROWS_MAX` tokens, the row of each of them is kept for `sample`.
        """
        self._engine.native()
        try:
            if every_row:
                self._native.extend_all(tokens, watcher)
            else:
                self._native.extend(tokens, watcher)
        except _native.NativeError as fault:
            if fault.args[0] == "cancelled":
                return False
            raise from_native(fault) from None
        return True

    def sample(
        self, position: int, sampling: Sampling, state: GrammarState | None = None
    ) -> tuple[int, float]:
        """Chooses the token with the index `position` from its row; returns it with its log probability.

        `state`, where there is one, says which tokens the grammar allows there.
        """
        with translated():
            return self._native.sample(position, sampling, state)

    def penalised(self, position: int, sampling: Sampling) -> NDArray[np.float32]:
        """A copy of the row [vocab] for `position` after the penalties, for logits processors."""
        with translated():
            return self._native.penalised(position, sampling)

    def choose(
        self,
        logits: NDArray[np.float32],
        position: int,
        sampling: Sampling,
        state: GrammarState | None = None,
    ) -> tuple[int, float]:
        """The same as `sample` for a row that already holds penalties and processors' changes."""
        with translated():
            return self._native.choose(position, logits, sampling, state)


def _machine(value: dict[str, Any]) -> Machine:
    return Machine(**{**value, "kernels": tuple(value["kernels"])})


def _plan(value: dict[str, Any], path: str, threads: int | None) -> Plan:
    return Plan(**_plan_fields(value, path, threads))


def _plan_report(value: dict[str, Any], path: str, threads: int | None) -> PlanReport:
    speed = value["tokens_per_second"]
    return PlanReport(
        **_plan_fields(value, path, threads),
        **{name: value[name] for name in _REPORT_FIELDS},
        tiers=tuple(Tier(**tier) for tier in value["tiers"]),
        hit_rate=Range(**value["hit_rate"]),
        per_token=PerToken(**value["per_token"]),
        tokens_per_second=None if speed is None else Range(**speed),
        basis=tuple(value["basis"]),
    )


def _plan_fields(value: dict[str, Any], path: str, threads: int | None) -> dict[str, Any]:
    sizes, cores, notes = value["sizes"], value["machine"]["cores_allowed"], tuple(value["notes"])
    if threads is not None and threads > cores:
        notes += (f"{threads} threads share the {cores} cores that this process may use: that is slower",)
    return {
        "model": _model_info(value["model"], path),
        "machine": _machine(value["machine"]),
        "notes": notes,
        "scales": ScalePlacement(**value["scales"]),
        "slot_bytes": value["scales"]["slot_bytes"],
        **{name: value[name] for name in _PLAN_FIELDS},
        **{name: sizes[name] for name in _SIZE_FIELDS},
    }


# Fields that the core's plan, and its sizes, have under the same names.
_PLAN_FIELDS = (
    *("ram_budget", "context", "io", "io_reason", "resident_bytes", "kv_bytes", "scratch_bytes"),
    *("slots", "cache_bytes", "projected_peak"),
)
_SIZE_FIELDS = ("experts_total", "expert_bytes_total", "kv_bytes_per_token")
_REPORT_FIELDS = (
    *("runs", "remote", "container", "experts_stored", "rates", "prefill", "bottleneck", "more_ram"),
    "conversion",
)


def _model_info(value: dict[str, Any], path: str) -> ModelInfo:
    value = {**value, "hidden_size": value["hidden"], "path": path, "name": _name(value["name"], Path(path))}
    del value["hidden"]
    value["formats"] = {role: tuple(names) for role, names in value["formats"].items() if names}
    return ModelInfo(**{**value, "eos_token_ids": tuple(value["eos_token_ids"])})


def _name(folder: str, path: Path) -> str:
    """`OWNER/NAME` for a snapshot of the Hugging Face cache, whose folder is named by its hash."""
    snapshots = path.absolute().parent
    repository = snapshots.parent.name
    if snapshots.name == "snapshots" and repository.startswith("models--"):
        return repository.removeprefix("models--").replace("--", "/", 1)
    return folder
