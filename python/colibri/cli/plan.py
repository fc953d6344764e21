"""``colibri plan``: where the weights of a model would live on this machine, and how fast that would be.

Reads headers, and a second's worth of weights to learn how fast the disk is. Of a repository that is not here
only configuration, index and the list of files are fetched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from colibri import locate
from colibri.cli.console import console
from colibri.cli.models import (
    choose_model,
    describe_model,
    load_options,
    model_folder,
    named_model,
    warn_about_memory,
)
from colibri.cli.options import MODEL_SETTINGS, PLAIN_OUTPUT, VerbCommand, takes
from colibri.cli.words import bytes_in_words, count_in_words, one_line, plural, seconds_in_words
from colibri.config import Settings
from colibri.errors import ColibriError, ModelNotFound, ResourceError

if TYPE_CHECKING:
    from colibri.results import PlanReport

NOT_COUNTED = "the Python process itself, about 25 MB"


@click.command(name="plan", cls=VerbCommand)
@click.argument("argument", metavar="[MODEL]", required=False)
@click.option("--no-measure", is_flag=True, help="Do not read weights to learn how fast the disk is.")
@takes(*MODEL_SETTINGS, "revision", "offline", *PLAIN_OUTPUT)
def command(settings: Settings, argument: str | None, no_measure: bool) -> None:
    """Show where the weights of MODEL will live, whether they fit, and how fast that will be.

    MODEL is what -m takes; without one it is the configured model, or the demo. OWNER/NAME need not be
    downloaded: its configuration and the list of its files are asked for. Nothing is loaded; weights are
    read for about a second to learn how fast the disk is.
    """
    try:
        plan = _plan(settings, argument, not no_measure)
    except ResourceError:
        if not settings.flag("json"):
            console().out("fits: no\n")
        raise
    warn_about_memory(plan)
    if settings.flag("json"):
        console().out_object(as_json(plan))
        return
    for line in lines(plan):
        console().out_line(line)


def _plan(settings: Settings, argument: str | None, measure: bool) -> PlanReport:
    """The plan of a model that is here, else of the repository of that name."""
    from colibri.model import plan

    named = named_model(settings, argument)
    wanted = named if named is not None else settings.text("model")
    try:
        choice = choose_model(settings, named, download=False)
    except ModelNotFound:
        if wanted is None or locate.repository_of(wanted) is None or settings.flag("offline"):
            raise
        return _plan_remote(settings, wanted)
    try:
        return plan(model_folder(choice), measure=measure, **load_options(settings))
    except ColibriError as fault:
        # A snapshot of the cache may hold no more than the small files.
        absent = fault.code in ("model_incomplete", "model_not_found")
        if not absent or wanted is None or choice.origin != "cache" or settings.flag("offline"):
            raise
        return _plan_remote(settings, wanted)


def _plan_remote(settings: Settings, wanted: str) -> PlanReport:
    from colibri.model import plan_remote

    found = locate.repository_of(wanted)
    assert found is not None
    repository, revision = found
    return plan_remote(
        repository,
        revision=settings.text("revision") or revision,
        offline=settings.flag("offline"),
        **load_options(settings),
    )


# Fields whose names lack their unit, with the name that has it.
UNITS = {
    **{name: f"{name}_bytes" for name in ("ram_budget", "projected_peak", "read_low", "read_high")},
    **{name: f"{name}_bytes" for name in ("memory_total", "memory_available", "cgroup_limit")},
    **{name: f"{name}_bytes" for name in ("cgroup_used", "swap_used", "page_size")},
    "context": "context_tokens",
}


def as_json(plan: PlanReport) -> dict[str, Any]:
    """Every number of the plan under a name with its unit, and what each kind of number rests on.

    The model's facts are those of ``inspect``, under the same names.
    """
    value = plan.to_dict()
    model, basis = value.pop("model"), value.pop("basis")
    sources = {name: text for name, _, text in (line.partition(": ") for line in basis)}
    return {
        "fits": True,
        "model": model,
        **_with_units(value),
        "sources": {**sources, "machine": "the system, as it reports itself", "not_counted": NOT_COUNTED},
    }


def _with_units(value: Any) -> Any:
    if isinstance(value, dict):
        return {UNITS.get(name, name): _with_units(inner) for name, inner in value.items()}
    return [_with_units(inner) for inner in value] if isinstance(value, list) else value


def lines(plan: PlanReport) -> list[str]:
    """The plan for people."""
    peak, budget = bytes_in_words(plan.projected_peak), bytes_in_words(plan.ram_budget)
    where = "; on the hub, not downloaded" if plan.remote else ""
    found = [
        f"model    {describe_model(plan.model.to_dict())}",
        f"stored   {plan.container}{where}",
        _machine(plan),
        f"reading  {plan.io}: {plan.io_reason}",
        "",
        *_table(plan),
        "",
        f"per token  {_per_token(plan)}",
        f"prefill    {_prefill(plan)}",
        f"bottleneck {plan.bottleneck['text']}{_more_ram(plan)}",
    ]
    if plan.conversion is not None:
        found.append(f"convert    {_conversion(plan)}")
    for number, line in enumerate(plan.basis):
        found.append(f"{'basis' if number == 0 else '':<10} {line}")
    found.append(f"not here   {NOT_COUNTED}")
    most = count_in_words(plan.model.context_max)
    found.append(f"context    {count_in_words(plan.context)} of at most {most} tokens")
    if not plan.runs:
        found.append(f"runs: no  (models of the family {plan.model.family} are not run yet)")
    found.append(f"fits: yes  (projected peak {peak} of {budget} allowed)")
    return found


def _table(plan: PlanReport) -> list[str]:
    rows = [("tier", "what", "size", "share")]
    rows += [(tier.tier, tier.what, bytes_in_words(tier.bytes), tier.share) for tier in plan.tiers]
    tier, what, size, _ = (max(len(row[column]) for row in rows) for column in range(4))
    return [f"{a:<{tier}}  {b:<{what}}  {c:>{size}}  {d}".rstrip() for a, b, c, d in rows]


def _machine(plan: PlanReport) -> str:
    machine = plan.machine
    free = "unknown" if machine.memory_available is None else bytes_in_words(machine.memory_available)
    memory = f"{free} RAM available"
    if machine.memory_total is not None:
        memory += f" of {bytes_in_words(machine.memory_total)}"
    if machine.cgroup_limit is not None:
        memory += f", control group limit {bytes_in_words(machine.cgroup_limit)}"
    processor = one_line(machine.cpu_name or "unknown processor")
    parts = [f"{processor}, {plural(machine.cores_allowed, 'core')}, {machine.kernels[0]}", memory]
    disk, reads = plan.rates["disk"], plan.rates["memory"]
    if disk["bytes_per_second"]:
        parts.append(f"disk {bytes_in_words(disk['bytes_per_second'])}/s {disk['kind']} (measured now)")
    if reads["bytes_per_second"]:
        parts.append(f"memory {bytes_in_words(reads['bytes_per_second'])}/s (measured now)")
    return f"machine  {' · '.join(parts)}"


def number_in_words(value: float) -> str:
    """Two significant digits, or a whole number of at most three."""
    if value >= 1000:
        return count_in_words(int(float(f"{value:.1e}")))
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def range_in_words(ends: Sequence[str]) -> str:
    """Two ends, or one where they read alike; a unit that both have is named once."""
    low, high = ends
    if low == high:
        return low
    number, _, unit = low.rpartition(" ")
    return f"{number or low}–{high}" if not number or high.endswith(f" {unit}") else f"{low} – {high}"


def _per_token(plan: PlanReport) -> str:
    load = plan.per_token
    disk, memory = (plan.rates[name]["bytes_per_second"] for name in ("disk", "memory"))
    if not load.experts:
        text = f"{bytes_in_words(load.touched_bytes)} of weights touched, nothing read"
    elif not load.read_high:
        text = f"{bytes_in_words(load.touched_bytes)} of weights touched; experts are read once, then none"
    else:
        read = range_in_words([bytes_in_words(load.read_low), bytes_in_words(load.read_high)])
        text = f"{bytes_in_words(load.expert_bytes)} of experts touched → {read} read"
        if disk:
            times = [_time(count / disk) for count in (load.read_low, load.read_high)]
            text += f" → {range_in_words(times)} on this disk"
    if memory:
        text += f", {_time(load.touched_bytes / memory)} of memory reads"
    speed = plan.tokens_per_second
    if speed is None:
        return f"{text} ⇒ speed unknown: {_unmeasured(plan)}"
    return f"{text} ⇒ {_speed(speed.low, speed.high)}"


def _unmeasured(plan: PlanReport) -> str:
    """Which of the rates that matter is not known, and why."""
    names = ("disk", "memory") if plan.per_token.read_high else ("memory",)
    name = next((name for name in names if not plan.rates[name]["bytes_per_second"]), names[0])
    return f"{name} {plan.rates[name]['basis']}"


def _prefill(plan: PlanReport) -> str:
    prefill = plan.prefill
    chunk, high = prefill["chunk_tokens"], prefill["tokens_per_second_high"]
    if not plan.per_token.read_high:
        return f"nothing to read; prompts are worked on {chunk} tokens at a time"
    each = f"each expert is read once for up to {chunk} tokens"
    if high is None:
        return f"faster in long prompts: {each}"
    return f"at most {number_in_words(high)} tok/s from the disk, in long prompts: {each}"


def _more_ram(plan: PlanReport) -> str:
    more = plan.more_ram
    if more is None:
        return ""
    hits, speed = more["hit_rate"], more["tokens_per_second"]
    shares = range_in_words([f"{100 * hits[end]:.0f} %" for end in ("low", "high")])
    text = f".  +{bytes_in_words(more['bytes'])} RAM ⇒ est. {shares} hits"
    return text if speed is None else f"{text}, {_speed(speed['low'], speed['high'])}"


def _speed(low: float, high: float) -> str:
    return f"{range_in_words([number_in_words(low), number_in_words(high)])} tok/s"


def _time(seconds: float) -> str:
    """A time that may be short: 0.41 ms, 12 ms, 1.5 s."""
    return f"{number_in_words(1000 * seconds)} ms" if seconds < 0.1 else seconds_in_words(seconds)


def _conversion(plan: PlanReport) -> str:
    need = plan.conversion
    assert need is not None
    made = bytes_in_words(need["container_bytes"])
    text = f"makes {made} of {bytes_in_words(need['source_bytes'])}"
    if not plan.remote:
        # The checkpoint lies here already, and is no part of what is needed.
        return f"{text}; free space: {made}"
    return (
        f"{text}; free space: {bytes_in_words(need['disk_bytes_streaming'])} with --delete-source, "
        f"{bytes_in_words(need['disk_bytes_keeping_source'])} with the checkpoint kept"
    )
