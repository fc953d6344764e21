"""``colibri generate``: what reaches which stream, what the options do, and how a run ends."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path

import pytest

FOX = "Tell me a story about a fox."


def reply(cli, *arguments: str, text: str | None = None) -> dict:
    done = cli("generate", "--json", *arguments, text=text)
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_a_story_is_told_and_nothing_else_reaches_standard_output(cli) -> None:
    done = cli("generate", FOX, "--temp", "0", "-n", "60")
    assert done.code == 0
    told = reply(cli, FOX, "--temp", "0", "-n", "60")
    assert done.out == told["text"]
    assert "fox" in done.out
    assert "no model configured: using the built-in demo" in done.err
    assert "tok/s" in done.err
    assert done.err.count("\n") == 2


def test_run_is_an_alias(cli) -> None:
    assert (
        cli("run", "hi", "--temp", "0", "-n", "5").out == cli("generate", "hi", "--temp", "0", "-n", "5").out
    )


def test_the_json_object_is_complete(cli) -> None:
    value = reply(cli, "hi", "-n", "3", "--seed", "5")
    assert value["version"] == 1
    assert value["seed"] == 5
    assert value["finish_reason"] == "length"
    assert value["usage"]["completion_tokens"] == 3
    assert value["usage"]["total_tokens"] == value["usage"]["prompt_tokens"] + 3
    assert value["timings"]["prefill_ms"] > 0
    assert 0 <= value["timings"]["expert_hit_rate"] <= 1


def test_the_drawn_seed_repeats_the_run(cli) -> None:
    first = reply(cli, FOX, "-n", "30")
    again = reply(cli, FOX, "-n", "30", "--seed", str(first["seed"]))
    assert again["text"] == first["text"]
    other = reply(cli, FOX, "-n", "30", "--seed", str(first["seed"] + 1))
    assert other["text"] != first["text"]


# So hot that even the likeliest token has less than a hundredth of the probability.
HOT = ("--temp", "5", "--seed", "1", "--top-p", "1", "-n", "12")


@pytest.mark.parametrize(
    "greedy",
    [("--top-p", "0.001"), ("--top-k", "1"), ("--min-p", "1"), ("--temp", "0"), ("--temperature", "0")],
)
def test_sa_10_options_of_sampling_reach_the_sampler(cli, greedy: tuple[str, str]) -> None:
    """SA-10."""
    likeliest = reply(cli, FOX, "--temp", "0", "-n", "12")["text"]
    assert reply(cli, FOX, *HOT, *greedy)["text"] == likeliest
    assert reply(cli, FOX, *HOT)["text"] != likeliest


def test_sa_10_penalties_reach_the_sampler(cli) -> None:
    """SA-10."""
    base = ("--temp", "0", "-n", "80")
    plain = reply(cli, FOX, *base)["text"]
    for penalty in (("--repeat-penalty", "3"), ("--presence-penalty", "2"), ("--frequency-penalty", "2")):
        assert reply(cli, FOX, *base, *penalty)["text"] != plain


def test_sa_10_seed_stop_and_length_reach_the_generation(cli) -> None:
    """SA-10."""
    base = (FOX, "--temp", "0", "-n", "40")
    whole = reply(cli, *base)
    words = whole["text"].split()
    stopped = reply(cli, *base, "--stop", words[5])
    assert stopped["finish_reason"] == "stop"
    assert stopped["text"] == whole["text"][: whole["text"].index(words[5])]
    assert reply(cli, *base, "--stop", "never said", "--stop", words[3])["finish_reason"] == "stop"
    assert reply(cli, FOX, "--temp", "0", "--n-predict", "7")["usage"]["completion_tokens"] == 7
    texts = {reply(cli, FOX, "-n", "20", "--seed", str(seed))["text"] for seed in range(4)}
    assert len(texts) > 1


def test_settings_of_environment_and_file_reach_the_generation(cli) -> None:
    assert (
        json.loads(cli("generate", "--json", "hi", COLIBRI_MAX_TOKENS="2").out)["usage"]["completion_tokens"]
        == 2
    )
    cli.config("max_tokens = 3\n")
    assert reply(cli, "hi")["usage"]["completion_tokens"] == 3


def test_prompt_is_made_of_files_standard_input_and_words(cli) -> None:
    (cli.home / "a.txt").write_text("first\n")
    joined = reply(cli, "first\n\nsecond\n\nthird", "--temp", "0", "-n", "1")["usage"]["prompt_tokens"]
    parts = reply(cli, "-f", "a.txt", "third", "--temp", "0", "-n", "1", text="second\n")["usage"][
        "prompt_tokens"
    ]
    dashed = reply(cli, "-f", "a.txt", "-f", "-", "third", "-n", "1", text="second\n")["usage"][
        "prompt_tokens"
    ]
    assert joined == parts == dashed
    assert (
        cli("generate", "--temp", "0", "-n", "8", text=FOX).out
        == cli("generate", "--temp", "0", "-n", "8", FOX).out
    )


def test_messages_and_system_make_the_conversation(cli) -> None:
    (cli.home / "m.json").write_text(json.dumps([{"role": "user", "content": FOX}]))
    base = ("--temp", "0", "-n", "10")
    assert reply(cli, "--messages", "m.json", *base)["text"] == reply(cli, FOX, *base)["text"]
    (cli.home / "m.json").write_text(
        json.dumps({"messages": [{"role": "user", "content": "My name is Tim."}]})
    )
    longer = reply(cli, "--messages", "m.json", "What is my name?", *base)
    assert longer["usage"]["prompt_tokens"] > reply(cli, "What is my name?", *base)["usage"]["prompt_tokens"]
    with_system = reply(cli, FOX, "-s", "Be brief.", *base)
    assert with_system["usage"]["prompt_tokens"] > reply(cli, FOX, *base)["usage"]["prompt_tokens"]


def test_raw_continues_the_text_without_a_template(cli) -> None:
    raw = reply(cli, "--raw", "Once upon a time", "--temp", "0", "-n", "8")
    assert raw["usage"]["prompt_tokens"] < reply(cli, "Once upon a time", "-n", "1")["usage"]["prompt_tokens"]
    assert raw["text"]


def test_an_effort_implies_reasoning_and_the_figures_say_so(cli) -> None:
    base = ("generate", "hi", "-n", "4", "--seed", "1")
    assert "thinking off" in cli(*base).err
    assert "thinking on" in cli(*base, "--reasoning-effort", "high").err
    assert "thinking off" in cli(*base, "--reasoning-effort", "high", "--no-think").err
    cli.config("think = false\n")
    assert "thinking on" in cli(*base, "--reasoning-effort", "high").err
    cli.config('reasoning_effort = "high"\n')
    assert "thinking on" in cli(*base).err
    assert "thinking off" in cli(*base, "--no-think").err


def test_the_limit_that_cut_an_answer_is_named(cli) -> None:
    done = cli("generate", FOX, "--temp", "0", "-c", "60")
    assert "the context is full: a larger --ctx" in done.err
    assert "limit of 3 tokens (-n)" in cli("generate", FOX, "--temp", "0", "-n", "3").err
    assert reply(cli, FOX, "--temp", "0", "-c", "60")["limit"] == "context"
    assert reply(cli, FOX, "--temp", "0", "-n", "3")["limit"] == "max_tokens"
    assert reply(cli, "What is 6 * 7?", "--temp", "0")["limit"] is None


def test_a_wrong_role_is_named_with_the_nearest(cli) -> None:
    (cli.home / "m.json").write_text(json.dumps([{"role": "usr", "content": FOX}]))
    done = cli("generate", "--messages", "m.json")
    assert (done.code, done.slug(), done.out) == (2, "invalid_value", "")
    assert "did you mean 'user'?" in done.err


def test_sizes_may_leave_out_the_b(cli) -> None:
    for size in ("1G", "1g", "1gb", "1000m"):
        assert json.loads(cli("plan", "--json", "--ram", size).out)["ram_budget_bytes"] == 10**9


def test_reasoning_stays_apart_from_the_answer(cli) -> None:
    base = ("generate", "--think", "--seed", "3", "-n", "40", "hi")
    value = json.loads(cli(*base, "--json").out)
    shown = cli(*base)
    assert shown.out == value["text"]
    assert "thinking on" in shown.err
    together = cli(*base, "--show-thinking", "stdout").out
    assert together.endswith(value["text"])
    assert value["reasoning"] in together


def test_ux_03_redirected_output_holds_the_reply_only(cli, terminal) -> None:
    """UX-03."""
    for variables in ({}, {"NO_COLOR": "1"}):
        done = cli("generate", "hi", "--temp", "0", "-n", "20", **variables)
        assert not {0x1B, 0x0D, 0x08} & set(done.raw)
        assert not {0x1B, 0x0D, 0x08} & set(done.raw_err)
    # Standard error is a terminal, standard output is not.
    reader, writer = os.pipe()
    screen = terminal("generate", "hi", "--temp", "0", "-n", "20", out=writer)
    os.close(writer)
    assert screen.wait() == 0
    with os.fdopen(reader, "rb") as stream:
        assert stream.read() == done.raw
    assert b"tok/s" in screen.seen
    assert done.raw not in screen.seen


def test_ux_03_a_terminal_gets_exactly_one_line_end(cli, terminal) -> None:
    """UX-03."""
    plain = cli("generate", "hi", "--temp", "0", "-n", "20", "-q").out.rstrip("\n")
    screen = terminal("generate", "hi", "--temp", "0", "-n", "20", "-q", "--progress", "none")
    assert screen.wait() == 0
    assert screen.seen.decode().replace("\r\n", "\n") == plain + "\n"


def test_input_from_a_pipe_with_output_on_a_terminal(cli) -> None:
    parent, child = pty.openpty()
    arguments = ("generate", "--temp", "0", "-n", "5", "-q")
    process = cli.start(*arguments, stdin=subprocess.PIPE, stdout=child, stderr=child)
    os.close(child)
    assert cli.end(process, b"hi").code == 0
    assert os.read(parent, 4096).endswith(b"\r\n")
    os.close(parent)


def test_quiet_leaves_only_the_answer(cli) -> None:
    done = cli("generate", "hi", "--temp", "0", "-n", "5", "-q")
    assert done.err == ""
    assert done.out


def test_no_stats_and_verbose(cli) -> None:
    base = ("generate", "hi", "--seed", "77", "-n", "3", "-m", "demo")
    assert cli(*base, "--no-stats").err == ""
    loud, louder = cli(*base, "-v").err, cli(*base, "-vv").err
    assert "seed 77" in loud
    assert "RAM" in loud
    assert len(louder) > len(loud)


def test_progress_as_json_lines(cli) -> None:
    done = cli("generate", FOX, "-n", "2", "-q", "--progress", "json")
    events = [json.loads(line) for line in done.err.splitlines()]
    # The demo is mapped: nothing is loaded, and a phase with nothing to do is none.
    assert {event["phase"] for event in events} == {"prefill", "decode"}
    for event in events:
        assert set(event) == {"phase", "done", "total", "unit", "eta_s"}
        assert event["done"] <= event["total"] > 0
    assert [event["unit"] for event in events if event["phase"] == "prefill"][-1] == "token"
    assert events[-1]["done"] == events[-1]["total"]


def test_plain_progress_says_when_a_phase_is_done(cli) -> None:
    done = cli("generate", "hi", "-n", "2", "-q", "--progress", "plain")
    assert done.err.splitlines()[0].startswith("prefill done in ")
    assert "\r" not in done.err


def test_timeout_stops_with_124_and_keeps_what_was_written(cli) -> None:
    done = cli("generate", FOX, "--temp", "0", "--timeout", "1ms")
    assert done.code == 124
    assert "stopped by --timeout" in done.err
    whole = cli("generate", FOX, "--temp", "0").out
    assert whole.startswith(done.out)


def test_a_reader_that_leaves_ends_the_run_with_141(cli) -> None:
    # At this temperature the model's own stops are rare: it is still writing when the reader leaves.
    process = cli.start("generate", FOX, "-n", "1500", "--temp", "3", "--top-p", "1", "--seed", "1", "-q")
    assert process.stdout.read(1)
    process.stdout.close()
    error = process.stderr.read()
    assert process.wait() == 141
    assert error == b""


def test_a_reader_that_has_left_ends_the_run_with_141(cli) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = cli.start("generate", "hi", "--temp", "0", "-q", stdout=writer)
    os.close(writer)
    done = cli.end(process)
    assert (done.code, done.err) == (141, "")


def test_a_full_disk_is_named(cli) -> None:
    with Path("/dev/full").open("wb") as full:
        process = cli.start("generate", "hi", "--temp", "0", "-q", stdout=full.fileno())
    done = cli.end(process)
    assert (done.code, done.slug()) == (4, "disk_full")


def test_tk_11_no_half_character_reaches_the_stream(cli) -> None:
    """TK-11, TK-14: whatever the tokens, standard output is whole characters."""
    for seed in range(3):
        done = cli("generate", "hi", "--temp", "50", "--top-p", "1", "--seed", str(seed), "-n", "60", "-q")
        assert done.code == 0
        assert done.raw.decode("utf-8") == done.out
