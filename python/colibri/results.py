"""What the API hands back: plain frozen values.

Owns the shapes of results, chunks, statistics, model facts and plans. Imports nothing of the package. numpy
is imported only when an array is asked for, because importing it takes longer than a short answer of a small
model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FinishReason = Literal["stop", "length", "cancelled", "timeout"]
Limit = Literal["max_tokens", "context"]
ChunkKind = Literal["text", "reasoning", "progress"]


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

    def to_dict(self) -> dict[str, Any]:
        """The same as a dictionary of JSON values."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """One finished generation.

    Attributes:
        text: the answer, without reasoning, stop strings and end tokens.
        reasoning: what stood between the thinking marks; empty when the model did not think.
        token_ids: every chosen token, the end token not included.
        finish_reason: `stop` (end token or stop string), `length` (max_tokens or a full context),
            `cancelled`, `timeout`.
        stats: counts and times.
        stop_token: the end token that was chosen, or None.
        limit: what `length` means here: `max_tokens`, or `context` when the context is full; else None.
    """

    text: str
    reasoning: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: Stats
    stop_token: int | None = None
    limit: Limit | None = None

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
        kind: `text` (the answer), `reasoning` (between the thinking marks) or `progress` (prefill, no text).
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
class Plan:
    """Where the weights will live; sizes in bytes.

    Attributes:
        model: the model the plan is for; machine: the machine it was made on.
        ram_budget: the memory colibri may use; projected_peak: what it takes at most.
        context: tokens the KV cache holds; kv_bytes: its size then; kv_bytes_per_token: its growth.
        io: `direct`, `buffered` or `mmap`; io_reason: why.
        resident_bytes: weights always in memory; scratch_bytes: work space.
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
        return {
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)},
            "model": self.model.to_dict(),
            "machine": self.machine.to_dict(),
            "notes": list(self.notes),
        }
