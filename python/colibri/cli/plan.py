"""``colibri plan``: where the weights of a model would live on this machine. Reads headers only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

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
from colibri.cli.words import bytes_in_words, count_in_words
from colibri.config import Settings
from colibri.errors import ResourceError

if TYPE_CHECKING:
    from colibri.results import Plan

BASIS = "sizes from the headers, memory as the system reports it; disk speed and hit rate are not measured"
NOT_COUNTED = "the Python process itself, about 25 MB"


@click.command(name="plan", cls=VerbCommand)
@click.argument("argument", metavar="MODEL", required=False)
@takes(*MODEL_SETTINGS, *PLAIN_OUTPUT)
def command(settings: Settings, argument: str | None) -> None:
    """Show where the weights of MODEL will live, and whether they fit.

    MODEL is what -m takes. Its headers are read and the system is asked for its memory. Nothing is loaded.
    """
    from colibri.model import plan as make_plan

    choice = choose_model(settings, named_model(settings, argument))
    try:
        plan = make_plan(model_folder(choice), **load_options(settings))
    except ResourceError:
        if not settings.flag("json"):
            console().out("fits: no\n")
        raise
    warn_about_memory(plan)
    if settings.flag("json"):
        console().out_object(as_json(plan))
        return
    for line in table(plan):
        console().out_line(line)


def touched_per_token(plan: Plan) -> int:
    """Bytes of routed experts that one token uses."""
    if not plan.experts_total:
        return 0
    return (
        plan.expert_bytes_total * plan.model.experts_per_token * plan.model.moe_layers // plan.experts_total
    )


def read_if_even(plan: Plan) -> int:
    """Bytes of those that come from disk when every expert is equally likely and the cache is full."""
    if not plan.experts_total:
        return 0
    absent = max(plan.experts_total - plan.slots, 0)
    return touched_per_token(plan) * absent // plan.experts_total


def as_json(plan: Plan) -> dict[str, object]:
    """Every number of the plan; names end in the unit where there is one."""
    return {
        "fits": True,
        **plan.to_dict(),
        "expert_bytes_touched_per_token": touched_per_token(plan),
        "expert_bytes_read_per_token": {
            "low": 0,
            "even": read_if_even(plan),
            "high": touched_per_token(plan),
        },
        "basis": BASIS,
        "not_counted": NOT_COUNTED,
    }


def table(plan: Plan) -> list[str]:
    """The plan for people."""
    cached = min(plan.slots, plan.experts_total)
    absent = "the rest" if cached < plan.experts_total else "read once"
    rows = [
        ("tier", "what", "size", "share"),
        ("RAM", "resident: dense, attention, embeddings", bytes_in_words(plan.resident_bytes), "always"),
        ("RAM", f"KV cache, ctx {plan.context}", bytes_in_words(plan.kv_bytes), "grows as used"),
        ("RAM", "scratch, I/O buffers", bytes_in_words(plan.scratch_bytes), ""),
        (
            "RAM",
            f"expert cache: {count_in_words(cached)} of {count_in_words(plan.experts_total)}",
            bytes_in_words(plan.cache_bytes),
            _share(cached, plan.experts_total),
        ),
        ("disk", "all experts", bytes_in_words(plan.expert_bytes_total), absent),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        f"model    {describe_model(plan.model.to_dict())}",
        _machine(plan),
        f"reading  {plan.io}: {plan.io_reason}",
        "",
    ]
    for row in rows:
        text = f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}"
        lines.append(text.rstrip())
    peak, budget = bytes_in_words(plan.projected_peak), bytes_in_words(plan.ram_budget)
    lines += ["", _per_token(plan), f"basis      {BASIS}", f"not here   {NOT_COUNTED}"]
    lines.append(f"context    {plan.context} of at most {plan.model.context_max} tokens")
    lines.append(f"fits: yes  (projected peak {peak} of {budget} allowed)")
    return lines


def _machine(plan: Plan) -> str:
    machine = plan.machine
    free = "unknown" if machine.memory_available is None else bytes_in_words(machine.memory_available)
    memory = f"{free} RAM available"
    if machine.memory_total is not None:
        memory += f" of {bytes_in_words(machine.memory_total)}"
    if machine.cgroup_limit is not None:
        memory += f", control group limit {bytes_in_words(machine.cgroup_limit)}"
    processor = machine.cpu_name or "unknown processor"
    return f"machine  {processor}, {machine.cores_allowed} cores, {machine.kernels[0]} · {memory}"


def _share(cached: int, total: int) -> str:
    return f"{100 * cached / total:.0f} %" if total else ""


def _per_token(plan: Plan) -> str:
    touched = touched_per_token(plan)
    if not touched:
        return "per token  no routed experts: nothing is read from disk"
    if plan.slots >= plan.experts_total:
        return f"per token  {bytes_in_words(touched)} of experts touched → each is read once, then none"
    return (
        f"per token  {bytes_in_words(touched)} of experts touched → 0 to {bytes_in_words(touched)} read; "
        f"{bytes_in_words(read_if_even(plan))} if every expert were equally likely"
    )
