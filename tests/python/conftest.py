"""Running the real console script: through pipes, and on a pseudo terminal."""

from __future__ import annotations

import importlib.util
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

# Seconds after which a hanging program fails the test; no test measures time with it.
PATIENCE = 120.0


def console_script() -> str:
    beside = Path(sys.executable).parent / "colibri"
    found = str(beside) if beside.exists() else shutil.which("colibri")
    assert found is not None, "the console script is not installed"
    return found


class Done:
    """A finished run."""

    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.code, self.raw, self.raw_err = code, out, err
        self.out, self.err = out.decode(), err.decode()

    def slug(self) -> str:
        """The slug of the error on standard error, which is no traceback."""
        assert "Traceback" not in self.err, self.err
        lines = [line for line in self.err.splitlines() if line.startswith("error[")]
        assert len(lines) == 1, self.err
        return lines[0].removeprefix("error[").partition("]")[0]


class Cli:
    """The program in a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.script = console_script()
        self.environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / "config"),
            "XDG_STATE_HOME": str(home / "state"),
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
        }

    def config(self, text: str) -> Path:
        file = self.home / "config" / "colibri" / "config.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    def start(
        self,
        *arguments: str,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
        **variables: str,
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [self.script, *arguments],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=self.home,
            env={**self.environment, **variables},
        )

    def end(self, process: subprocess.Popen[bytes], data: bytes | None = None) -> Done:
        """Waits for a started run."""
        try:
            out, err = process.communicate(data, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"hangs: {process.args}; so far {out!r} {err!r}")
        return Done(process.returncode, out or b"", err or b"")

    def __call__(self, *arguments: str, text: str | bytes | None = None, **variables: str) -> Done:
        data = text.encode() if isinstance(text, str) else text
        stdin = subprocess.DEVNULL if data is None else subprocess.PIPE
        return self.end(self.start(*arguments, stdin=stdin, **variables), data)


class Terminal:
    """The program on a pseudo terminal."""

    def __init__(
        self, command: list[str], folder: Path, environment: dict[str, str], out: int | None = None
    ) -> None:
        self._parent, child = pty.openpty()
        self.seen = b""
        self._mark = 0
        self.process = subprocess.Popen(
            command,
            stdin=child,
            stdout=child if out is None else out,
            stderr=child,
            cwd=folder,
            env=environment,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(child)

    def read(self, seconds: float) -> bool:
        """Takes what has come; False at the end."""
        if not select.select([self._parent], [], [], seconds)[0]:
            return True
        try:
            piece = os.read(self._parent, 65536)
        except OSError:
            return False
        self.seen += piece
        return bool(piece)

    def expect(self, text: str | bytes, occurrences: int = 1) -> bytes:
        """Waits until the text has come since the last expectation, and returns everything up to it."""
        wanted = text.encode() if isinstance(text, str) else text
        limit = time.monotonic() + PATIENCE
        while self.seen.count(wanted, self._mark) < occurrences:
            if not self.read(0.05) or time.monotonic() > limit:
                pytest.fail(f"{wanted!r} did not come; seen {self.seen!r}")
        start = self._mark
        for _ in range(occurrences):
            self._mark = self.seen.index(wanted, self._mark) + len(wanted)
        return self.seen[start : self._mark]

    def send(self, data: str | bytes) -> None:
        os.write(self._parent, data.encode() if isinstance(data, str) else data)

    def interrupt(self) -> None:
        """Presses Ctrl-C."""
        self.send(b"\x03")

    def wait(self) -> int:
        """Reads to the end and returns the exit code."""
        limit = time.monotonic() + PATIENCE
        while self.read(0.05):
            if self.process.poll() is not None and not select.select([self._parent], [], [], 0.05)[0]:
                break
            if time.monotonic() > limit:
                pytest.fail(f"does not end; seen {self.seen!r}")
        return self.process.wait(timeout=PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self._parent)


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    home = tmp_path / "home"
    home.mkdir()
    return Cli(home)


@pytest.fixture
def terminal(cli: Cli) -> Iterator[Callable[..., Terminal]]:
    """Starts the program on a pseudo terminal; ``out`` is another place for standard output."""
    started: list[Terminal] = []

    def start(*arguments: str, out: int | None = None, **variables: str) -> Terminal:
        command = [cli.script, *arguments]
        started.append(Terminal(command, cli.home, {**cli.environment, **variables}, out))
        return started[-1]

    yield start
    for one in started:
        one.close()


def _fake_hub() -> ModuleType:
    """The module beside this file, which the way tests are imported does not find by its name."""
    name = "colibri_fake_hub"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("fake_hub.py"))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture
def fault() -> Callable[..., Any]:
    """Makes a fault for the fake hub."""
    made: Callable[..., Any] = _fake_hub().Fault
    return made


@pytest.fixture
def hub() -> Iterator[Any]:
    """A hub on the loopback interface; `hub.url` is its address."""
    server = _fake_hub().FakeHub()
    yield server
    server.close()
