"""One training process.

All processes run the same loop: pull micro-batches until the step has enough, wait, update tensors pulled
from a queue, wait. The first process also keeps the clock, the router biases, the log and the checkpoints.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import torch

from ..architecture import CONFIG
from ..weights import Checkpoint, save_checkpoint
from .network import TrainingNetwork
from .optimiser import Slot, int4_grid, is_int4, update
from .schedule import (
    TOKENS_PER_MICRO_BATCH,
    Plan,
    losses_of,
    micro_batches,
    row_length,
)
from .shared import STATISTICS, Layout, Shared, take

LOG_STEPS = 10
BIAS_RATE = 0.004
# The router bias moves only for experts outside this band of the mean load, so the natural skew stays.
LOAD_BAND = (0.4, 2.5)
BALANCED_UNTIL = 0.9


@dataclass(frozen=True)
class Run:
    """Settings that every process gets."""

    plan: Plan
    rows: Path
    out: Path
    minutes: float
    """Length of the whole schedule by the clock."""
    steps: int
    """Steps of this run up to progress 1; 0 lets the clock decide."""
    until: float
    """Progress at which this run ends."""
    first_progress: float
    started: float
    """Wall time at progress 0."""
    checkpoint_seconds: float
    continued: bool
    compiled: bool


class Worker:
    """State of one process."""

    def __init__(self, rank: int, processes: int, shared: Shared, run: Run) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(rank)
        self.rank, self.processes, self.shared, self.run = rank, processes, shared, run
        self.layout = Layout()
        weights = self.layout.views(shared.weights)
        self.parameters = {name: view.detach().requires_grad_() for name, view in weights.items()}
        self.gradient = torch.zeros(self.layout.size, dtype=shared.weights.dtype)
        for name, view in self.layout.views(self.gradient).items():
            self.parameters[name].grad = view
        bias = dict(enumerate(shared.bias))
        self.network = TrainingNetwork(self.parameters, bias, run.compiled)
        self.rows = dict(np.load(run.rows))
        self.rows_used = {length: shared.rows_used.get(length, 0) for length in self.rows}
        self.first_step = self.step = shared.step

    def progress(self) -> float:
        """Share of the run that is done, by the clock or by steps."""
        if self.run.steps:
            done = (self.step - self.first_step) / self.run.steps
            return min(1.0, self.run.first_progress + (1 - self.run.first_progress) * done)
        return min(1.0, (time.time() - self.run.started) / (self.run.minutes * 60))

    def begin_step(self) -> float:
        """Resets the counters and agrees on the progress."""
        if self.rank == 0:
            self.shared.progress[0] = self.progress()
            self.shared.next_batch.value = 0
            self.shared.next_tensor.value = 0
            self.shared.statistics.zero_()
            self.shared.counts.zero_()
        self.shared.gradients[self.rank].zero_()
        self.shared.barrier.wait()
        return self.shared.progress.item()

    def gather_gradients(self, progress: float) -> int:
        """Works on micro-batches until none is left; returns how many the step has."""
        length = row_length(progress)
        key, rows = str(length), TOKENS_PER_MICRO_BATCH // length
        data = self.rows[key]
        count = micro_batches(progress)
        while (batch := take(self.shared.next_batch)) < count:
            start = (self.rows_used[key] + batch * rows) % max(1, len(data) - rows)
            ids = torch.from_numpy(data[start : start + rows].astype(np.int64))
            measured = self.network.loss(ids, losses_of(progress, batch))
            self.gradient.zero_()
            measured.total.backward()
            self.shared.gradients[self.rank].add_(self.gradient)
            for kind, value in enumerate(measured.parts()):
                if value is not None:
                    self.shared.statistics[self.rank, kind] += torch.tensor([value.item(), 1.0])
            for layer, used in self.network.expert_counts.items():
                self.shared.counts[self.rank, layer] += used
        self.rows_used[key] += count * rows
        self.shared.barrier.wait()
        return count

    @torch.no_grad()
    def update_weights(self, progress: float, batches: int) -> float:
        """Updates tensors until none is left; returns the learning rate."""
        shared, layout = self.shared, self.layout
        done = self.step - self.first_step
        rate = self.run.plan.learning_rate(progress, done, self.run.continued)
        while (number := take(shared.next_tensor)) < len(layout.names):
            name = layout.names[number]
            gradient = sum(layout.view(row, name) for row in shared.gradients) / batches
            slot = Slot(
                name,
                layout.view(shared.master, name),
                layout.view(shared.momentum, name),
                layout.view(shared.second, name),
            )
            update(slot, gradient, rate, progress, done)
            rounded = progress >= self.run.plan.int4_from and is_int4(name)
            value = int4_grid(slot.weight) if rounded else slot.weight
            layout.view(shared.weights, name).copy_(value)
        return rate

    def balance_routers(self, progress: float) -> None:
        """Moves the router biases of experts with far too few or far too many tokens."""
        if progress >= BALANCED_UNTIL:
            return
        counts = self.shared.counts.sum(0)
        for layer in CONFIG.layers:
            if not CONFIG.is_dense(layer):
                mean = counts[layer].mean().clamp_min(1)
                rare = (counts[layer] < LOAD_BAND[0] * mean).float()
                frequent = (counts[layer] > LOAD_BAND[1] * mean).float()
                self.shared.bias[layer] += BIAS_RATE * (rare - frequent)

    def log(self, file: TextIO, progress: float, rate: float, tokens_per_second: float) -> None:
        """One line of losses and expert load."""
        sums = self.shared.statistics.sum(0)
        means = {name: (sums[i, 0] / sums[i, 1]).item() for i, name in enumerate(STATISTICS)}
        losses = " ".join(f"{name} {value:.3f}" for name, value in means.items())
        counts = self.shared.counts.sum(0)[CONFIG.first_k_dense_replace : CONFIG.num_hidden_layers]
        ranked = counts.sort(-1, descending=True).values
        quarter = ranked[:, : CONFIG.n_routed_experts // 4].sum(-1) / ranked.sum(-1)
        least = (ranked[:, -1] / ranked.mean(-1)).min()
        print(
            f"step {self.step} progress {progress:.4f} length {row_length(progress)} {losses} "
            f"rate {rate:.2e} tokens/s {tokens_per_second:.0f} "
            f"top quarter {quarter.mean():.2f} least used {least:.2f}",
            file=file,
            flush=True,
        )

    def save(self, progress: float) -> None:
        """Writes the checkpoint."""
        checkpoint = Checkpoint(
            self.layout.views(self.shared.weights.bfloat16()),
            self.shared.bias,
            self.shared.master,
            self.step,
            progress,
            self.rows_used,
        )
        save_checkpoint(self.run.out / "checkpoint.safetensors", checkpoint)

    def loop(self, log_file: TextIO | None) -> None:
        """Trains until the progress is reached. The first process has a log file."""
        saved = counted = time.monotonic()
        tokens = 0
        while (progress := self.begin_step()) < self.run.until:
            batches = self.gather_gradients(progress)
            rate = self.update_weights(progress, batches)
            self.shared.barrier.wait()
            tokens += batches * TOKENS_PER_MICRO_BATCH
            if log_file is not None:
                self.balance_routers(progress)
                now = time.monotonic()
                if self.step % LOG_STEPS == 0:
                    self.log(log_file, progress, rate, tokens / (now - counted))
                    tokens, counted = 0, now
                if now - saved > self.run.checkpoint_seconds:
                    saved = now
                    self.save(progress)
            self.step += 1
            self.shared.barrier.wait()
        if log_file is not None:
            self.save(progress)


def work(rank: int, processes: int, shared: Shared, run: Run) -> None:
    """Entry point of a process."""
    worker = Worker(rank, processes, shared, run)
    if rank:
        worker.loop(None)
        return
    with (run.out / "train.log").open("a", encoding="utf-8") as log_file:
        worker.loop(log_file)
