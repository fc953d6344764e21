"""Ctrl-C, SIGTERM and hard ends, on pipes and on a terminal."""

from __future__ import annotations

import json
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path

import pytest

PROMPT = ">>> "
DATA = Path(__file__).resolve().parents[1] / "data"
# Answers that do not end by themselves: at this temperature the model's own stops are rare.
ENDLESS = ("--temp", "3", "--top-p", "1", "--seed", "1", "-n", "1500")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_stops_an_answer_and_keeps_what_was_written(cli, number: int, code: int) -> None:
    process = cli.start("generate", "Tell me a story.", *ENDLESS)
    first = process.stdout.read(20)
    process.send_signal(number)
    done = cli.end(process)
    assert done.code == code
    assert "stopped after" in done.err
    assert "Traceback" not in done.err
    assert len(first) == 20
    (first + done.raw).decode("utf-8")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_waiting_for_standard_input_ends_at_once(cli, number: int, code: int) -> None:
    process = cli.start("generate", stdin=subprocess.PIPE)
    # The line that says what is being waited for.
    assert b"standard input" in process.stderr.readline()
    process.send_signal(number)
    done = cli.end(process)
    assert (done.code, done.out) == (code, "")
    assert "Traceback" not in done.err


# Experts a layer of the enlarged checkpoint: converting them takes many times as long as a signal needs.
EXPERTS = 4096


def large_checkpoint(folder: Path) -> Path:
    """The demo with more experts, as a checkpoint whose weights are a hole in a file."""
    shutil.copytree(DATA / "demo_hf", folder)
    config = json.loads((folder / "config.json").read_text())
    few = config["n_routed_experts"]
    (folder / "config.json").write_text(json.dumps({**config, "n_routed_experts": EXPERTS}))
    file = folder / "model.safetensors"
    with file.open("rb") as stream:
        given = json.loads(stream.read(struct.unpack("<Q", stream.read(8))[0]))
    given.pop("__metadata__", None)
    header, end = {}, 0
    for name, tensor in given.items():
        start, stop = tensor["data_offsets"]
        shape, size = tensor["shape"], stop - start
        layer, _, rest = name.partition(".experts.")
        if rest and not rest.startswith("0."):
            continue
        names = [f"{layer}.experts.{index}.{rest[2:]}" for index in range(EXPERTS)] if rest else [name]
        if ".mlp.gate." in name:
            assert shape[0] == few
            shape, size = [EXPERTS, *shape[1:]], size // few * EXPERTS
        for each in names:
            header[each] = {**tensor, "shape": shape, "data_offsets": [end, end + size]}
            end += size
    text = json.dumps(header).encode()
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + end)
    return folder


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_during_conversion_leaves_nothing_half_written(
    cli, tmp_path: Path, number: int, code: int
) -> None:
    source = large_checkpoint(tmp_path / "large")
    process = cli.start("convert", str(source), "out", "--progress", "json")
    event = json.loads(process.stderr.readline())
    assert event["phase"] == "convert"
    assert event["done"] < event["total"]
    process.send_signal(number)
    done = cli.end(process)
    assert done.code == code
    assert "Traceback" not in done.err
    # Finished shards are kept for the next run; nothing stands under the final name.
    kept = list(cli.home.iterdir())
    assert [path.name for path in kept] in ([], ["out.partial"])
    if kept:
        assert (kept[0] / ".colibri-convert.json").is_file()
        assert list(kept[0].glob("*.safetensors")) != []
        assert "colibri convert" in done.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_during_a_deep_check_ends_it(cli, tmp_path: Path, number: int, code: int) -> None:
    source = large_checkpoint(tmp_path / "large")
    process = cli.start("doctor", "-m", str(source), "--deep", "--progress", "json")
    event = json.loads(process.stderr.readline())
    assert event["phase"] == "verify"
    assert event["done"] < event["total"]
    process.send_signal(number)
    done = cli.end(process)
    assert (done.code, done.out) == (code, "")
    assert "Traceback" not in done.err


def test_ux_04_ctrl_c_stops_the_reply_and_the_chat_goes_on(cli, terminal) -> None:
    """UX-04, first case: the partial reply stays in the conversation."""
    screen = terminal("chat", *ENDLESS)
    screen.expect(PROMPT)
    screen.send("Tell me a story.\r")
    screen.expect("\n")
    while len(screen.seen) < 2000 and screen.read(0.05):
        if screen.seen.count(b"Tell me a story.") and len(screen.seen.split(b"Tell me a story.")[-1]) > 40:
            break
    screen.interrupt()
    screen.expect("stopped after")
    screen.expect(PROMPT)
    screen.send("/set max 3\r")
    screen.expect(PROMPT)
    screen.send("hello\r")
    screen.expect("tok/s")
    screen.expect(PROMPT)
    screen.send("/undo\r")
    screen.expect("1 earlier message remains")
    screen.send("/bye\r")
    assert screen.wait() == 0
    assert b"Traceback" not in screen.seen


def test_ux_04_ctrl_c_on_an_empty_prompt_hints_and_the_second_leaves(terminal) -> None:
    """UX-04, second case."""
    screen = terminal("chat")
    screen.expect(PROMPT)
    screen.interrupt()
    screen.expect("Ctrl-C again or Ctrl-D leaves")
    screen.expect(PROMPT)
    screen.interrupt()
    assert screen.wait() == 130
    assert b"Traceback" not in screen.seen


def test_ctrl_c_on_a_line_in_progress_drops_the_line(cli, terminal) -> None:
    screen = terminal("chat", "-n", "1")
    screen.expect(PROMPT)
    screen.send("half a li")
    screen.expect("half a li")
    screen.interrupt()
    screen.expect(PROMPT)
    screen.send("/show system\r")
    screen.expect("no system message")
    screen.expect(PROMPT)
    screen.send("\x04")
    assert screen.wait() == 0
    assert b"again" not in screen.seen


def long_file(cli) -> None:
    (cli.home / "long.txt").write_text("The fox and the bird went to the river. " * 150)


def in_prefill(terminal, *arguments: str) -> object:
    """A chat on a terminal that reads a long prompt."""
    screen = terminal("chat", "-t", "1", "--progress", "bar", *arguments)
    screen.expect(PROMPT)
    screen.send("/file long.txt\r")
    screen.expect(PROMPT)
    screen.send("hello\r")
    screen.expect("hello")
    return screen


def test_ux_04_two_presses_within_a_second_during_prefill_leave_with_130(terminal, cli) -> None:
    """UX-04, third case."""
    long_file(cli)
    screen = in_prefill(terminal, *ENDLESS)
    screen.expect("prefill")
    screen.interrupt()
    # Two presses in one instant are one signal to the system.
    time.sleep(0.1)
    screen.interrupt()
    assert screen.wait() == 130
    assert b"Traceback" not in screen.seen


def test_a_long_prompt_is_confirmed_or_dropped(terminal, cli) -> None:
    long_file(cli)
    screen = in_prefill(terminal, "--confirm-over", "1ms", "-n", "3")
    screen.expect("Enter = go")
    screen.interrupt()
    screen.expect("stopped during prefill")
    screen.expect(PROMPT)
    screen.send("hello\r")
    screen.expect("Enter = go")
    screen.send("\r")
    screen.expect("first token")
    screen.expect(PROMPT)
    screen.send("\x04")
    assert screen.wait() == 0


@pytest.mark.parametrize("answer", ["n", "no", "q", "what?"])
def test_only_yes_goes_on_with_a_long_prompt(terminal, cli, answer: str) -> None:
    long_file(cli)
    screen = in_prefill(terminal, "--confirm-over", "1ms", "-n", "3")
    asked = screen.expect("Enter = go · n or Ctrl-C = drop")
    assert b" tok/s." in asked
    screen.send(f"{answer}\r")
    screen.expect("stopped during prefill")
    screen.expect(PROMPT)
    screen.send("\x04")
    assert screen.wait() == 0


def test_sigterm_at_the_prompt_ends_with_143_and_restores_the_terminal(terminal) -> None:
    screen = terminal("chat")
    screen.expect(PROMPT)
    screen.process.send_signal(signal.SIGTERM)
    assert screen.wait() == 143
    assert screen.seen.count(b"\x1b[?2004l") >= 1


def test_a_piped_chat_that_is_interrupted_ends_with_130(cli) -> None:
    process = cli.start("chat", *ENDLESS, stdin=subprocess.PIPE)
    process.stdin.write(b"Tell me a story.\n")
    process.stdin.flush()
    assert process.stdout.read(10)
    process.send_signal(signal.SIGINT)
    done = cli.end(process)
    assert done.code == 130
    assert "Traceback" not in done.err


def test_an_ignored_signal_stays_ignored(cli) -> None:
    command = ["bash", "-c", 'trap "" INT; exec "$@"', "bash", cli.script]
    process = subprocess.Popen(
        [*command, "generate", "hi", "--temp", "0", "-n", "300"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=cli.environment,
        cwd=cli.home,
    )
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    assert cli.end(process).code == 0
