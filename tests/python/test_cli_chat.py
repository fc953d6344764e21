"""``colibri chat``: a terminal, a pipe, and the commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from colibri.cli.chat_commands import COMMANDS, SET, completions, help_lines, is_command

PROMPT = ">>> "
SHORT = ("chat", "--temp", "0", "-n", "12")


def turns(cli, *arguments: str, text: str) -> list[dict]:
    done = cli("chat", "--temp", "0", "--json", *arguments, text=text)
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def test_a_piped_line_is_a_turn_and_the_end_of_the_pipe_ends_the_chat(cli) -> None:
    done = cli(*SHORT, text="hello\n\nMy name is Tim.\n")
    assert done.code == 0
    assert done.out.count("\n") == 2
    assert done.out.endswith("\n")
    assert PROMPT not in done.out + done.err
    assert done.err.count("tok/s") == 2
    assert "built-in demo" in done.err
    assert "does not know anything" in done.err


def test_a_chat_remembers_and_reuses_the_conversation(cli) -> None:
    first, second = turns(cli, text="Hello! My name is Tim.\nWhat is my name?\n")
    assert second["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"]
    assert second["usage"]["cached_tokens"] >= first["usage"]["prompt_tokens"]
    assert "Tim" in second["text"]


def test_the_system_message_is_sent(cli) -> None:
    without = turns(cli, "-n", "1", text="hello\n")[0]["usage"]["prompt_tokens"]
    assert turns(cli, "-n", "1", "-s", "Be brief.", text="hello\n")[0]["usage"]["prompt_tokens"] > without
    by_command = turns(cli, "-n", "1", text='/set system "Be brief."\nhello\n')[0]["usage"]["prompt_tokens"]
    assert by_command > without


def test_clear_and_undo_shorten_the_conversation(cli) -> None:
    alone = turns(cli, "-n", "8", text="hello\n")[0]["usage"]["prompt_tokens"]
    for command in ("/clear", "/undo"):
        values = turns(cli, "-n", "8", text=f"Tell me a story.\n{command}\nhello\n")
        assert values[-1]["usage"]["prompt_tokens"] == alone


def test_retry_answers_the_same_message_with_another_seed(cli) -> None:
    done = cli("chat", "--json", "-n", "30", "--seed", "1", text="Tell me a story.\n/retry\n")
    first, again = (json.loads(line) for line in done.out.splitlines())
    assert again["usage"]["prompt_tokens"] == first["usage"]["prompt_tokens"]
    assert again["seed"] != first["seed"]
    assert again["text"] != first["text"]


def test_continue_goes_on_after_a_cut(cli) -> None:
    whole = turns(cli, "-n", "30", text="Tell me a story.\n")[0]["text"]
    parts = turns(cli, "-n", "15", text="Tell me a story.\n/continue\n")
    assert [part["finish_reason"] for part in parts] == ["length", "length"]
    assert "".join(part["text"] for part in parts) == whole


def test_file_puts_its_text_before_the_next_message_only(cli) -> None:
    (cli.home / "notes.txt").write_text("The fox lives under the bridge.\n")
    values = turns(cli, "-n", "1", text="/file notes.txt\nhello\n")
    joined = cli("generate", "--json", "--temp", "0", "-n", "1", "The fox lives under the bridge.\n\nhello")
    assert values[0]["usage"]["prompt_tokens"] == json.loads(joined.out)["usage"]["prompt_tokens"]
    assert "notes.txt" in cli("chat", text="/file notes.txt\n").err


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/help", "/retry"),
        ("/set seed 7", "seed is 7"),
        ("/set top_p 0.5", "top_p is 0.5"),
        ("/set top_k 5", "top_k is 5"),
        ("/set min_p 0.1", "min_p is 0.1"),
        (":help", "/retry"),
        ("/show model", "experts"),
        ("/show settings", "temp"),
        ("/show system", "no system message"),
        ("/show stats", "no answer yet"),
        ("/set temp 0.5", "temp is 0.5"),
        ("/set max 5", "max_tokens is 5"),
        ("/set think", "think is on"),
        ("/set nothink", "think is off"),
        ("/set verbose", "verbose is on"),
        ("/set nohistory", "history"),
        ("/clear", "empty again"),
    ],
)
def test_commands_answer_on_standard_error(cli, text: str, shown: str) -> None:
    done = cli("chat", text=f"{text}\n")
    assert done.code == 0
    assert done.out == ""
    assert shown in done.err
    assert "error[" not in done.err


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("/hlep", "did you mean /help?"),
        ("/", "/help"),
        ("/ hello", "/help"),
        ("/?", "known are /help"),
        ("/exti", "did you mean /exit?"),
        ("/set", "think"),
        ("/set tmp 1", "did you mean temp?"),
        ("/set temp hot", "/set temp X"),
        ("/set temp hot", "from 0 to 100"),
        ("/show nothing", "known are model"),
        ("/show modle", "did you mean model?"),
        ("/file", "/file PATH"),
        ("/file absent.txt", "absent.txt"),
        ("/undo", "nothing has been answered"),
        ("/retry", "nothing has been answered"),
        ("/continue", "nothing to continue"),
    ],
)
def test_a_wrong_command_is_explained_and_the_chat_goes_on(cli, text: str, hint: str) -> None:
    done = cli("chat", "-n", "1", text=f"{text}\n/show system\n")
    assert done.code == 0
    assert hint in done.err
    assert "no system message" in done.err


def test_every_command_is_in_the_help(cli) -> None:
    shown = cli("chat", text="/help\n").err
    for command in (*COMMANDS.values(), *SET.values()):
        assert command.usage in shown
    assert max(map(len, help_lines())) < 80


def test_what_a_command_is() -> None:
    assert is_command("/help")
    assert is_command(":set temp 1")
    assert is_command("/")
    assert is_command("/2 of it")
    for text in ("/usr/bin/env is a path", ":-)", ":", " /help", "/help\nme", "help", ""):
        assert not is_command(text)


@pytest.mark.parametrize("word", ["bye", "exit", "quit"])
def test_bye_ends_the_chat_before_the_pipe_ends(cli, word: str) -> None:
    done = cli("chat", "-n", "2", text=f"hello\n/{word}\nhello\n")
    assert done.code == 0
    assert done.err.count("tok/s") == 1


def test_completions_of_a_command(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    assert completions("/he") == ["/help"]
    assert completions(":re") == [":retry"]
    assert completions("/set top") == ["top_k", "top_p"]
    assert completions("/show s") == ["settings", "stats", "system"]
    assert completions(f"/file {tmp_path}/no") == [f"{tmp_path}/notes.txt"]
    assert completions("/set temp 0") == completions("/nothing ") == []


def test_tab_completes_a_command_and_is_a_tab_elsewhere(cli, terminal) -> None:
    screen = terminal(*SHORT)
    screen.expect(PROMPT)
    screen.send("/sho\tsy\t\r")
    screen.expect("no system message")
    screen.expect(PROMPT)
    screen.send("a\tb\r")
    screen.expect("tok/s")
    screen.expect(PROMPT)
    screen.send("/exit\r")
    assert screen.wait() == 0
    assert history(cli)[1] == "a\tb"


def test_a_full_context_is_explained_with_the_ways_out(cli, terminal) -> None:
    screen = terminal("chat", "-c", "60", "--temp", "0")
    screen.expect(PROMPT)
    screen.send("Tell me a story about a fox.\r")
    figures = screen.expect(PROMPT)
    assert b"/clear, /undo" in figures
    screen.send("And then?\r")
    screen.expect("context_length_exceeded")
    assert b"/clear, /undo, or start again with --ctx" in screen.expect(PROMPT)
    screen.send("/undo\r")
    screen.expect("0 earlier messages remain")
    screen.send("/bye\r")
    assert screen.wait() == 0


def test_lines_on_a_terminal_are_broken_between_words(terminal) -> None:
    screen = terminal("chat", "--temp", "0", "-n", "5")
    screen.expect(PROMPT)
    screen.send("/show model\r")
    screen.expect(PROMPT)
    screen.send("hello\r")
    screen.expect(PROMPT)
    screen.send("/bye\r")
    assert screen.wait() == 0
    lines = screen.seen.decode().replace("\r", "").split("\n")
    assert max(len(line) for line in lines if "\x1b[?2004" not in line) <= 80 + len("\x1b[2m\x1b[0m")


def test_an_error_in_a_piped_chat_has_its_exit_code(cli) -> None:
    done = cli("chat", "-c", "16", text="word " * 200 + "\n")
    assert done.code == 4
    assert done.slug() == "context_length_exceeded"


def history(cli) -> list[str]:
    file = cli.home / "state" / "colibri" / "history"
    return file.read_text().split("\n")[:-1] if file.exists() else []


def test_a_chat_on_a_terminal(cli, terminal) -> None:
    screen = terminal(*SHORT)
    screen.expect(PROMPT)
    screen.send("hello\r")
    screen.expect("tok/s")
    screen.expect(PROMPT)
    screen.send("\x04")
    assert screen.wait() == 0
    assert history(cli) == ["hello"]
    assert (cli.home / "state" / "colibri" / "history").stat().st_mode & 0o077 == 0


def test_an_error_on_a_terminal_does_not_end_the_chat(terminal) -> None:
    screen = terminal("chat", "-c", "16", "-n", "2")
    screen.expect(PROMPT)
    screen.send("word " * 100 + "\r")
    screen.expect("context_length_exceeded")
    screen.expect(PROMPT)
    screen.send("/bye\r")
    assert screen.wait() == 0


CODE = ("def f():", "    return 1", "")


@pytest.mark.parametrize("marked", [True, False])
def test_ux_01_a_pasted_block_is_one_message(cli, terminal, marked: bool) -> None:
    """UX-01."""
    screen = terminal(*SHORT)
    screen.expect(PROMPT)
    block = "\r".join(CODE) + "\r"
    screen.send(f"\x1b[200~{block}\x1b[201~" if marked else block)
    screen.send("\r")
    screen.expect("tok/s")
    screen.expect(PROMPT)
    screen.send("/bye\r")
    assert screen.wait() == 0
    assert screen.seen.count(b"tok/s") == 1
    messages = [line.replace("\\n", "\n") for line in history(cli) if line != "/bye"]
    assert len(messages) == 1
    assert messages[0].startswith("\n".join(CODE))


def test_three_quotes_open_a_message_of_several_lines(cli, terminal) -> None:
    screen = terminal(*SHORT)
    screen.expect(PROMPT)
    screen.send('"""\r')
    screen.expect("... ")
    screen.send("one\r")
    screen.expect("... ")
    screen.send('two"""\r')
    screen.expect("tok/s")
    screen.expect(PROMPT)
    screen.send("/bye\r")
    assert screen.wait() == 0
    assert history(cli)[0] == "one\\ntwo"


def test_history_is_read_back_and_can_be_turned_off(cli, terminal) -> None:
    for first in ("/set nohistory\r", "\x1b[A\x1b[A\r"):
        screen = terminal("chat", "-n", "1", "--temp", "0")
        screen.expect(PROMPT)
        screen.send(first)
        screen.expect(PROMPT)
        screen.send("hello\r")
        screen.expect("tok/s")
        screen.expect(PROMPT)
        screen.send("/bye\r")
        screen.wait()
    assert (
        history(cli) == ["/set nohistory", "/set nohistory", "hello", "/bye"]
        or history(cli)[0] == "/set nohistory"
    )
