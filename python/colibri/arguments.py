"""Checking what callers pass: numbers of a kind and range.

Owns the one check of a number. Refuses other kinds, truth values among them, and what lies outside the range.
What must hold: numbers of other libraries, such as numpy's, are taken like Python's own, and what is kept is
a Python number.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from typing import Any, Final

from colibri.errors import invalid_value

INTEGER_MAX: Final = 2**31 - 1
"""The largest count."""
SECONDS_MAX: Final = 1e9
"""The longest time, in seconds: thirty years."""


@dataclasses.dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `low` to `high`, integral where `whole`; `above` leaves out `low` itself."""

    low: float
    high: float
    whole: bool = False
    above: bool = False
    # What may stand in the place of a number, in words.
    otherwise: str = ""

    def check(self, name: str, value: object) -> Any:
        """The value as a Python number.

        Raises:
            InvalidValue: naming the parameter, when it is no number of this range.
        """
        number = self._number(value)
        if number is None or not self.low <= number <= self.high or (self.above and number == self.low):
            raise invalid_value(name, value, str(self))
        return number

    def _number(self, value: object) -> float | None:
        # A truth value is one of numpy too.
        if isinstance(value, (bool, str, bytes)) or type(value).__name__ == "bool":
            return None
        try:
            number = operator.index(value) if self.whole else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            return None
        return number if self.whole or math.isfinite(number) else None

    def __str__(self) -> str:
        kind = "an integer" if self.whole else "a number"
        low, high = (str(end) if isinstance(end, int) else f"{end:g}" for end in (self.low, self.high))
        text = f"{kind} above {low} and at most {high}" if self.above else f"{kind} from {low} to {high}"
        return f"{text}, {self.otherwise}" if self.otherwise else text


COUNT: Final = Range(1, INTEGER_MAX, whole=True, otherwise="or None")
"""A number of threads or workers."""
SECONDS: Final = Range(0, SECONDS_MAX, above=True, otherwise="or None")
"""A time after which something stops."""
