"""What the public objects that hold the core's resources share.

Owns their use in a `with` block and the refusal to be pickled or copied.
"""

from __future__ import annotations

import abc
from types import TracebackType
from typing import NoReturn, Self


class Closing(abc.ABC):
    """Something that is closed when its `with` block is left."""

    @abc.abstractmethod
    def close(self) -> None:
        """Lets go of what it holds; idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Handle(Closing):
    """A closing object that stands for memory of the core: there is no second one of it."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied")
