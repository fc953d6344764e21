"""What the API hands back: plain frozen values.

Owns the shapes of results, chunks, statistics, model facts, plans, findings and reports. Imports nothing of
the package. numpy is imported only when an array is asked for, because importing it takes longer than a short
answer of a small model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FinishReason = Literal["stop", "length", "tool_calls", "cancelled", "timeout"]
Limit = Literal["max_tokens", "context"]
ChunkKind = Literal["text", "reasoning", "tool_call", "progress"]
CheckStatus = Literal["ok", "warn", "fail", "skip"]


@dataclasses.dataclass(frozen=True, slots=True)
class DraftStat:
    """What a source of drafts did in one generation.

    Attributes:
        proposed: tokens it proposed; accepted: how many of them the model chose.
        switched_off: why it proposes nothing any more, or None.
    """

    proposed: int = 0
    accepted: int = 0
    switched_off: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Stats:
    """Counts and times of one generation.

    Attributes:
        prompt_tokens: tokens of the rendered prompt.
        cached_tokens: how many of them were already in the KV cache.
        completion_tokens: tokens chosen, the end token not counted.
        prefill_s: seconds from the start to the logits of the last prompt token.
        first_token_s: seconds from the start to the first token, or None when there was none.
        decode_s: seconds after prefill.
        tokens_per_second: completion tokens per second of decoding; 0 without tokens.
        expert_hits: experts found in memory.
        expert_misses: experts read from disk.
        bytes_read: bytes of experts read from disk.
        seed: the seed in use, given or drawn.
        forwards: passes of the model after the prompt; each verifies the drafts that go with it.
        forwards_saved: tokens that were chosen without a pass of their own.
        forced_tokens: tokens whose every byte the grammar left no choice about.
        drafts: what each source of drafts did, by its name.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    prefill_s: float
    first_token_s: float | None
    decode_s: float
    tokens_per_second: float
    expert_hits: int
    expert_misses: int
    bytes_read: int
    seed: int
    forwards: int = 0
    forwards_saved: int = 0
    forced_tokens: int = 0
    drafts: Mapping[str, DraftStat] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The same as a dictionary of JSON values."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """One finished generation.

    Attributes:
        text: the answer, without reasoning, tool calls, stop strings and end tokens.
        reasoning: what stood between the thinking marks; empty when the model did not think.
        token_ids: every chosen token, the end token not included.
        finish_reason: `stop` (end token, stop string or the end of the grammar), `tool_calls` (the answer
            ended with calls), `length` (max_tokens or a full context), `cancelled`, `timeout`.
        stats: counts and times.
        stop_token: the end token that was chosen, or None.
        limit: what `length` means here: `max_tokens`, or `context` when the context is full; else None.
        tool_calls: the calls in the answer, in the OpenAI format: `id`, `type` and `function` with `name` and
            `arguments`, a JSON text.
        complete: whether the answer is all of a text of the grammar; None where no grammar constrained it.
    """

    text: str
    reasoning: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: Stats
    stop_token: int | None = None
    limit: Limit | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()
    complete: bool | None = None

    @property
    def tokens(self) -> NDArray[np.int32]:
        """The chosen tokens as an int32 array [n]."""
        import numpy as np

        return np.array(self.token_ids, dtype=np.int32)

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= 40 else self.text[:39] + "…"
        return f"Result({text!r}, {len(self.token_ids)} tokens, {self.finish_reason})"


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of a stream.

    Attributes:
        kind: `text` (the answer), `reasoning` (between the thinking marks), `tool_call` (a call in the
            model's own form) or `progress` (prefill, no text).
        text: whole characters only; may be empty while a character or a possible stop string is incomplete.
        token: the token id, or None for progress and for text held back until the end.
        logprob: natural logarithm of the token's probability before temperature and truncation, or None.
        done: prompt tokens processed, for progress; total: prompt tokens in all.
    """

    kind: ChunkKind
    text: str = ""
    token: int | None = None
    logprob: float | None = None
    done: int | None = None
    total: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts about a model, from its headers only.

    Attributes:
        name: the folder's name; `OWNER/NAME` for a folder of the Hugging Face cache.
        path: the folder.
        family: the architecture, such as `glm_moe_dsa`.
        layers: decoder layers; moe_layers: how many of them have routed experts.
        experts: routed experts per such layer; experts_per_token: how many a token uses.
        vocab_size: rows of the logits.
        hidden_size: width of the residual stream.
        context_max: the longest context the model was made for, in tokens.
        parameters: weights in all.
        formats: weight formats by role, such as `{"experts": ("q4g64",)}`.
        has_mtp: whether a multi-token-prediction layer is present; has_indexer: whether sparse attention is.
        container_bytes: size of all weight files.
        eos_token_ids: the end tokens the configuration names.
    """

    name: str
    path: str
    family: str
    layers: int
    moe_layers: int
    experts: int
    experts_per_token: int
    vocab_size: int
    hidden_size: int
    context_max: int
    parameters: int
    formats: Mapping[str, tuple[str, ...]]
    has_mtp: bool
    has_indexer: bool
    container_bytes: int
    eos_token_ids: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same as a dictionary of JSON values."""
        formats = {role: list(names) for role, names in self.formats.items()}
        return {**dataclasses.asdict(self), "formats": formats, "eos_token_ids": list(self.eos_token_ids)}


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """What the system says about itself; sizes in bytes; None where it says nothing.

    Attributes:
        memory_total: installed memory; memory_available: what can be had without swapping.
        cgroup_limit: the memory limit of the control group, or None; cgroup_used: what it uses.
        cores_physical: physical cores; cores_allowed: those within affinity and quota.
        page_size: size of a memory page; swap_used: swap in use.
        cpu_name: the processor's name.
        kernels: the kernel sets this processor can run, best first.
    """

    memory_total: int | None
    memory_available: int | None
    cgroup_limit: int | None
    cgroup_used: int | None
    cores_physical: int | None
    cores_allowed: int
    page_size: int | None
    swap_used: int | None
    cpu_name: str | None
    kernels: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same as a dictionary of JSON values."""
        return {**dataclasses.asdict(self), "kernels": list(self.kernels)}


@dataclasses.dataclass(frozen=True, slots=True)
class ScalePlacement:
    """Where the scales of routed experts live.

    Attributes:
        mode: `record` (beside their codes), `resident` (read once, kept in memory), `with_each_miss` (read
            again with every expert) or `mapped` (used where they lie in mapped files).
        resident_bytes: memory for scales that are kept apart from the cache.
        reads_per_miss: reads that an expert takes at most; 0 for mapped files.
        slot_bytes: memory of one expert in the cache.
        reason: why it is so.
    """

    mode: str
    resident_bytes: int
    reads_per_miss: int
    slot_bytes: int
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Where the weights will live; sizes in bytes.

    Attributes:
        model: the model the plan is for; machine: the machine it was made on.
        ram_budget: the memory colibri may use; projected_peak: what it takes at most.
        context: tokens the KV cache holds; kv_bytes: its size then; kv_bytes_per_token: its growth.
        io: `direct`, `buffered` or `mmap`; io_reason: why.
        resident_bytes: weights always in memory; scratch_bytes: work space.
        scales: where the scales of experts live.
        slots: experts the cache holds; cache_bytes: their size; slot_bytes: one of them.
        experts_total: routed experts of the model; expert_bytes_total: their size.
        notes: what to know about the plan, such as an estimate in place of a fact.
    """

    model: ModelInfo
    machine: Machine
    ram_budget: int
    context: int
    io: str
    io_reason: str
    resident_bytes: int
    kv_bytes: int
    scratch_bytes: int
    scales: ScalePlacement
    slots: int
    cache_bytes: int
    slot_bytes: int
    experts_total: int
    expert_bytes_total: int
    kv_bytes_per_token: int
    projected_peak: int
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same as a dictionary of JSON values."""
        value: dict[str, Any] = _json(self)
        return value


@dataclasses.dataclass(frozen=True, slots=True)
class Range:
    """An estimate: the cautious end and the hopeful one."""

    low: float
    high: float


@dataclasses.dataclass(frozen=True, slots=True)
class Tier:
    """What lies in one place.

    Attributes:
        tier: `RAM` or `disk`; what: what lies there; bytes: its size; share: how much of it is used when.
        cached_per_layer: experts of a layer in memory on average, for the expert cache; experts_per_layer:
            of how many.
    """

    tier: str
    what: str
    bytes: int
    share: str
    cached_per_layer: float | None = None
    experts_per_layer: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class PerToken:
    """What one decoded token moves.

    Attributes:
        experts: routed experts that are evaluated; expert_bytes: their bytes.
        resident_bytes: resident weights that are read in memory; touched_bytes: both together.
        read_low: bytes from the disk under concentrated routing; read_high: when every expert is equally
            likely.
    """

    experts: int
    expert_bytes: int
    resident_bytes: int
    touched_bytes: int
    read_low: int
    read_high: int


@dataclasses.dataclass(frozen=True, slots=True)
class PlanReport(Plan):
    """A plan with what to expect of it; made by `colibri.plan` and `colibri.plan_remote`.

    Attributes:
        runs: whether this version runs the model's family; remote: whether the model is not here, and its
            sizes are projected.
        container: what the weights are stored as, in words.
        experts_stored: routed experts in the files, those of the prediction layer included.
        tiers: what lies where.
        hit_rate: share of the chosen experts that are found in memory, once the cache is full.
        per_token: bytes that a token moves.
        rates: of `disk` and `memory`: `bytes_per_second`, None where it was not measured, and `basis`.
        tokens_per_second: decoding; None where a rate that matters was not measured.
        prefill: `chunk_tokens`, `read_bytes_per_token`, `tokens_per_second_high` (what the disk allows, or
            None).
        bottleneck: `resource` (`disk`, `memory` or `unknown`) and `text`.
        more_ram: what `bytes` more memory would do, and `text`; None when all experts fit already.
        conversion: what converting a checkpoint takes; None for a container.
        basis: what the numbers rest on, one sentence each.
    """

    runs: bool
    remote: bool
    container: str
    experts_stored: int
    tiers: tuple[Tier, ...]
    hit_rate: Range
    per_token: PerToken
    rates: Mapping[str, Any]
    tokens_per_second: Range | None
    prefill: Mapping[str, Any]
    bottleneck: Mapping[str, str]
    more_ram: Mapping[str, Any] | None
    conversion: Mapping[str, Any] | None
    basis: tuple[str, ...]


def _json(value: Any) -> Any:
    """A result as JSON values: a dictionary for what has fields, a list for a tuple."""
    if isinstance(value, (ModelInfo, Machine)):
        return value.to_dict()
    if dataclasses.is_dataclass(value):
        return {field.name: _json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: _json(inner) for name, inner in value.items()}
    return [_json(inner) for inner in value] if isinstance(value, (list, tuple)) else value


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """What one check of `doctor` found.

    Attributes:
        id: its name, which stays the same over versions, such as `model.files`.
        status: `ok`, `warn`, `fail`, or `skip` for a check that was not made.
        text: what was found; fix: what to do about it; None where all is well.
        details: every fault that was found, where there are several.
    """

    id: str
    status: CheckStatus
    text: str
    fix: str | None = None
    details: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class DoctorReport:
    """The checks of `doctor`, in the order in which they were made.

    Attributes:
        path: the model's folder, or None when only the machine was looked at.
        checks: what each of them found.
    """

    path: str | None
    checks: tuple[Check, ...]

    @property
    def failures(self) -> int:
        """Number of checks that failed."""
        return sum(check.status == "fail" for check in self.checks)

    @property
    def warnings(self) -> int:
        """Number of warnings."""
        return sum(check.status == "warn" for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """The same as a dictionary of JSON values."""
        return {
            "path": self.path,
            "checks": _json(self.checks),
            "failures": self.failures,
            "warnings": self.warnings,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class ConvertReport:
    """What a conversion wrote; or would write, for a dry run.

    Attributes:
        source: the checkpoint's folder, or `OWNER/NAME`; destination: the container's folder.
        dry_run: whether nothing was written.
        summary: files with sizes and digests (None for those not written), formats by class, counts, notes;
            of a dry run `space` and `estimate` too.
        download: for a source on the hub: `commit`, `bytes` of the weights, `missing_bytes` that are not
            here, `held_bytes` of them that lie on the disk at a time.
    """

    source: str
    destination: str
    dry_run: bool
    summary: dict[str, Any]
    download: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The same as one dictionary of JSON values: the fields of `summary` stand beside the others."""
        value = dataclasses.asdict(self)
        summary = value.pop("summary")
        return {**value, **summary}
