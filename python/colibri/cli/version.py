"""The line of ``colibri --version``."""

from __future__ import annotations

import platform

from colibri import engine


def version_line() -> str:
    """Program, native core with its instruction set, and interpreter."""
    core = engine.version()
    python = ".".join(platform.python_version_tuple()[:2])
    return f"colibri {core.version} (core {core.build}, {core.kernels}, python {python})"
