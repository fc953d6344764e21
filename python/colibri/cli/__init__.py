"""The command line: one file per verb, a table that loads them lazily, and the rules every verb shares.

Standard output carries the answer and nothing else; banner, progress, figures and warnings go to standard
error. Nothing outside this package imports it.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Entry point of the console script."""
    import signal

    # Until the program has its own handling of signals, Ctrl-C ends it without a word.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from colibri.cli.app import main as run_to_exit

    run_to_exit()
