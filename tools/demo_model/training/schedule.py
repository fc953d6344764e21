"""What changes during training, as functions of the progress from 0 to 1."""

import math
from dataclasses import dataclass

TOKENS_PER_MICRO_BATCH = 2048
# Row length from a progress on; a micro-batch always has the same number of tokens.
PHASES = ((0.0, 256), (0.52, 512), (0.89, 1024))
WARM_UP_STEPS = 60
WARM_UP_STEPS_CONTINUED = 25
LOWEST_RATE = 0.02


@dataclass(frozen=True)
class Plan:
    """Settings of one run."""

    rate: float
    """Peak learning rate of the matrices."""
    start: float
    """Progress at which the cosine schedule starts."""
    int4_from: float
    """Progress from which the forward pass uses int4 weights."""

    def learning_rate(self, progress: float, step: int, continued: bool) -> float:
        """Warm-up in the first steps, then a cosine that ends at a fiftieth."""
        warm_up = min(1.0, (step + 1) / (WARM_UP_STEPS_CONTINUED if continued else WARM_UP_STEPS))
        angle = math.pi * (progress - self.start) / (1 - self.start)
        return self.rate * warm_up * (LOWEST_RATE + (1 - LOWEST_RATE) * 0.5 * (1 + math.cos(angle)))


@dataclass(frozen=True)
class Losses:
    """Which losses a micro-batch has."""

    mtp: bool
    mtp_weight: float
    second_draft: bool
    indexer: bool


def row_length(progress: float) -> int:
    """Row length of the current phase."""
    return max(length for start, length in PHASES if progress >= start)


def micro_batches(progress: float) -> int:
    """Micro-batches of a step."""
    return 2 if progress < 0.45 else 4


def losses_of(progress: float, micro_batch: int) -> Losses:
    """The MTP layer sees half of the micro-batches at first; its second draft and the indexer come late."""
    late = progress > 0.6
    return Losses(
        mtp=late or micro_batch % 2 == 0,
        mtp_weight=0.3 if late else 0.6,
        second_draft=progress > 0.72 and micro_batch % 2 == 0,
        indexer=progress >= PHASES[-1][0] or (progress > 0.55 and micro_batch == 1),
    )
