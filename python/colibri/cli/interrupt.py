"""Ctrl-C and friends: the first press stops at the next safe point, the second at once.

The core computes for seconds without returning to the interpreter, and a Python signal handler runs only
between two bytecodes. So the number of every signal is written to a pipe by the interpreter's C handler,
and a thread reads it: the first one asks the running work to stop through its cancel token, the second
ends the process, whatever the main thread does. Between pieces of work a signal ends the process at once;
while a line is being typed it belongs to the prompt.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

_EXIT = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


# A line editor looks for signals before it waits for a key: one that comes between the two would lie there
# until a key is pressed. A change of the window's size, after these times, ends the wait and changes nothing.
_WAKE_SECONDS = (0.05, 0.2, 1.0)


def _wake_main_thread() -> None:
    main = threading.main_thread().ident
    for seconds in _WAKE_SECONDS:
        time.sleep(seconds)
        if main is not None:
            signal.pthread_kill(main, signal.SIGWINCH)


class Interrupts:
    """What a signal means right now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancel: Callable[[], None] | None = None
        self._at_prompt: Callable[[], None] | None = None
        # How many presses of Ctrl-C the prompt has taken, as the main thread counts them and as the watching
        # thread does; each writes its own. Either may be the first to hear of a press.
        self._taken_by_prompt = self._seen_at_prompt = 0
        self._restore: list[Callable[[], None]] = []
        # When Ctrl-C last stopped a piece of work, on the clock of time.monotonic.
        self.stopped_at = float("-inf")
        # The exit code of the signal that asked the work to stop; 0 while none did.
        self.exit_code = 0

    def install(self) -> None:
        """Takes over the signals and starts the thread that watches them.

        A system that has no descriptor or thread left keeps the interpreter's own handling: the first press
        raises then.
        """
        # A signal that was ignored when the process started (nohup) stays ignored.
        numbers = [number for number in _EXIT if signal.getsignal(number) is not signal.SIG_IGN]
        self._remember_terminal()
        try:
            writer = self._start_watching()
        except (OSError, RuntimeError):
            if signal.SIGINT in numbers:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            return
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, self._on_main_thread)

    def _start_watching(self) -> int:
        """Starts the thread; returns the descriptor that takes the numbers of signals."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        try:
            threading.Thread(target=self._watch, args=(reader,), name="colibri-signals", daemon=True).start()
        except RuntimeError:
            os.close(reader)
            os.close(writer)
            raise
        return writer

    def _remember_terminal(self) -> None:
        """A line editor changes the terminal; a process that ends at once must put it back."""
        try:
            import termios

            descriptor = sys.stdin.fileno()
            attributes = termios.tcgetattr(descriptor)
        except (ImportError, OSError, ValueError, AttributeError, termios.error):
            return

        def restore() -> None:
            with contextlib.suppress(termios.error, OSError):
                termios.tcsetattr(descriptor, termios.TCSANOW, attributes)

        self._restore.append(restore)

    def on_leave(self, restore: Callable[[], None]) -> None:
        """Has ``restore`` called when a signal ends the process at once."""
        self._restore.append(restore)

    def _on_main_thread(self, number: int, _frame: FrameType | None) -> None:
        prompt = self._at_prompt
        if prompt is not None and number == signal.SIGINT:
            self._taken_by_prompt += 1
            prompt()
        elif prompt is None and self._cancel is None and not self.exit_code:
            # Not left to the watching thread: what the main thread does next may end the process otherwise.
            self.leave(_EXIT[signal.Signals(number)])

    def _watch(self, reader: int) -> None:
        # The main thread must be the one whose system calls a signal interrupts.
        signal.pthread_sigmask(signal.SIG_BLOCK, set(_EXIT))
        while True:
            try:
                numbers = os.read(reader, 64)
            except OSError:
                return
            for number in numbers:
                if number in _EXIT:
                    self._received(number)

    def _received(self, number: int) -> None:
        with self._lock:
            code = _EXIT[signal.Signals(number)]
            waits = self._at_prompt is not None
            if number == signal.SIGINT and (waits or self._seen_at_prompt < self._taken_by_prompt):
                self._seen_at_prompt += 1
                if waits:
                    threading.Thread(target=_wake_main_thread, daemon=True).start()
                return
            if self._cancel is not None and not self.exit_code:
                self.exit_code, self.stopped_at = code, time.monotonic()
                self._cancel()
                return
            self.leave(self.exit_code or code)

    def leave(self, code: int) -> None:
        """Ends the process at once and leaves the terminal as it was found."""
        for restore in self._restore:
            restore()
        if sys.stderr is not None and sys.stderr.isatty():
            with contextlib.suppress(OSError):
                os.write(2, b"\n")
        os._exit(code)

    @contextlib.contextmanager
    def work(self, cancel: Callable[[], None]) -> Iterator[None]:
        """While the block runs, the first signal calls ``cancel`` and the second ends the process.

        A signal that asked for an end and came too late for the work before it stops this work at once.
        """
        with self._lock:
            self._cancel = cancel
            if self.exit_code:
                cancel()
        try:
            yield
        finally:
            with self._lock:
                self._cancel = None

    @contextlib.contextmanager
    def prompt(self, pressed: Callable[[], None]) -> Iterator[None]:
        """While the block runs, Ctrl-C calls ``pressed`` on the main thread, which may raise."""
        with self._lock:
            # Two presses in one instant are two for the watching thread and one for this.
            self._taken_by_prompt = max(self._taken_by_prompt, self._seen_at_prompt)
            self._at_prompt = pressed
        try:
            yield
        finally:
            with self._lock:
                self._at_prompt = None

    def forgive(self) -> int:
        """Forgets the signal that stopped the last piece of work and returns its exit code."""
        with self._lock:
            code, self.exit_code = self.exit_code, 0
        return code


@functools.cache
def interrupts() -> Interrupts:
    """The signals of this process."""
    return Interrupts()
