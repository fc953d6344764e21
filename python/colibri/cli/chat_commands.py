"""The commands of a chat: one line each in the table ``COMMANDS``.

A line that begins with ``/`` is a command, and so is a word after ``:``. It changes the conversation or its
settings, or shows something on standard error; it never writes to standard output. Unknown commands and
wrong arguments are answered with the right form.
"""

from __future__ import annotations

import glob
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from colibri.cli import failure
from colibri.cli.answer import figures
from colibri.cli.console import console
from colibri.cli.prompt import STDIN, read_text
from colibri.cli.structure import OF_TOOLS, SOURCES, structure_of
from colibri.cli.words import count_in_words, one_line, plural, value_in_words
from colibri.config import Value, nearest
from colibri.errors import ColibriError
from colibri.settings import BY_NAME, GENERATION, STRUCTURE

if TYPE_CHECKING:
    from colibri.cli.chat import Chat


class Bye(Exception):
    """The user leaves."""


@dataclass(frozen=True, slots=True)
class ChatCommand:
    """One command: how it is written, what it does, and the function that does it."""

    usage: str
    help: str
    run: Callable[[Chat, str], None]
    # Other words for the same.
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChatSetting:
    """One word of /set: how it is written, what it does, and the function that does it."""

    usage: str
    help: str
    change: Callable[[Chat, str], None]


def _help(_chat: Chat, _argument: str) -> None:
    for line in help_lines():
        console().line(line)


def _clear(chat: Chat, _argument: str) -> None:
    chat.clear()
    console().info("the conversation is empty again", "dim")


def _bye(_chat: Chat, _argument: str) -> None:
    raise Bye


def _retry(chat: Chat, _argument: str) -> None:
    chat.retry()


def _undo(chat: Chat, _argument: str) -> None:
    chat.undo()
    console().info(f"taken back; {_remaining(chat.turns)}", "dim")


def _remaining(turns: int) -> str:
    return f"{plural(turns, 'earlier message')} {'remains' if turns == 1 else 'remain'}"


def _continue(chat: Chat, _argument: str) -> None:
    chat.continue_answer()


def _file(chat: Chat, argument: str) -> None:
    if not argument:
        raise failure.usage("/file needs the path of a text file", "", COMMANDS["file"].usage)
    # A pipe could keep the chat waiting for ever.
    text = read_text(f"./{argument}" if argument == STDIN else argument, regular=True)
    chat.attach(text)
    console().info(f"{argument}: {count_in_words(len(text))} characters go before your next message", "dim")


def _grammar(chat: Chat, argument: str) -> None:
    if not argument:
        raise failure.usage("/grammar needs a file, or off", "", COMMANDS["grammar"].usage)
    _structure(chat, "grammar", "" if argument == "off" else argument)


def _set_schema(chat: Chat, text: str) -> None:
    if not text:
        raise failure.usage("/set schema needs a file, or off", "", SET["schema"].usage)
    _structure(chat, "json_schema", "" if text == "off" else text)


def _structure(chat: Chat, name: str, value: str) -> None:
    """Binds the answers that follow; an empty value frees them, and gives back the tools of the chat."""
    if value == STDIN:
        raise failure.usage("standard input carries the messages", "", "give a file, or the text itself")
    values, before = chat.settings.values, dict(chat.settings.values)
    for other in (BY_NAME[name] for name in (*SOURCES, *OF_TOOLS)):
        if values[other.name].value != other.default:
            values[other.name] = Value(other.default, "default", "/set")
    has_tools = bool(chat.tools.options)
    if not value:
        values |= chat.tool_settings
        chat.structure = chat.tools
        console().info("answers are free again" + ", and may call the tools" * has_tools, "dim")
        return
    values[name] = Value(value, "flag", "/set")
    try:
        chat.structure = structure_of(chat.settings)
    except ColibriError:
        values |= before
        raise
    word, off = ("grammar", "/grammar off") if name == "grammar" else ("schema", "/set schema off")
    what = f"the {word}" if "::=" in value or value.startswith("{") else one_line(value)
    aside = f"; the tools of --tools are set aside until {off}" if has_tools else ""
    console().info(f"answers follow {what} from now on{aside}", "dim")


def _set(chat: Chat, argument: str) -> None:
    word, _, rest = argument.partition(" ")
    setting = SET.get(word)
    if setting is None:
        what = f"/set does not know {word}" if word else "/set needs a setting"
        raise failure.usage(what, failure.did_you_mean(word, SET), "/help")
    setting.change(chat, rest.strip())


def _set_value(name: str, fixed: object = None) -> Callable[[Chat, str], None]:
    setting = BY_NAME[name]

    def change(chat: Chat, text: str) -> None:
        value = fixed
        if fixed is None:
            try:
                value = setting.kind.parse(_unquoted(text))
            except ValueError as fault:
                usage = next(entry.usage for entry in SET.values() if entry.change is change)
                raise failure.usage(f'{name} cannot be "{text}"', str(fault), usage) from None
        chat.settings.values[name] = Value(value, "flag", "/set")
        console().info(f"{name} is {value_in_words(setting, value)}", "dim")

    return change


def _unquoted(text: str) -> str:
    """A text may stand in double quotes."""
    if len(text) >= 2 and text[0] == text[-1] == '"':
        try:
            return shlex.split(text)[0] if len(shlex.split(text)) == 1 else text[1:-1]
        except ValueError:
            return text[1:-1]
    return text


def _set_verbose(chat: Chat, _text: str) -> None:
    screen = console()
    screen.verbose = 0 if screen.verbose else 1
    chat.settings.values["verbose"] = Value(screen.verbose, "flag", "/set")
    screen.line(f"verbose is {'on' if screen.verbose else 'off'}", "dim")


def _set_history(kept: bool) -> Callable[[Chat, str], None]:
    def change(chat: Chat, _text: str) -> None:
        chat.keep_history(kept)
        console().info(f"messages are {'' if kept else 'not '}written to the history file", "dim")

    return change


SET: dict[str, ChatSetting] = {
    "think": ChatSetting("/set think", "reason before answering", _set_value("think", True)),
    "nothink": ChatSetting("/set nothink", "answer at once", _set_value("think", False)),
    "temp": ChatSetting("/set temp X", "temperature; 0 takes the likeliest token", _set_value("temp")),
    "top_p": ChatSetting("/set top_p X", "keep tokens that hold this probability", _set_value("top_p")),
    "top_k": ChatSetting("/set top_k N", "keep this many tokens; 0 is off", _set_value("top_k")),
    "min_p": ChatSetting("/set min_p X", "drop less likely tokens; 0 is off", _set_value("min_p")),
    "seed": ChatSetting("/set seed N", "seed of the random numbers", _set_value("seed")),
    "max": ChatSetting("/set max N", "longest answer in tokens", _set_value("max_tokens")),
    "system": ChatSetting('/set system "…"', "system message", _set_value("system")),
    "verbose": ChatSetting("/set verbose", "say more, or less again", _set_verbose),
    "schema": ChatSetting("/set schema FILE", "answers are JSON of this schema; off frees them", _set_schema),
    "history": ChatSetting("/set history", "keep messages in the history file", _set_history(True)),
    "nohistory": ChatSetting("/set nohistory", "do not keep them", _set_history(False)),
}


def _show(chat: Chat, argument: str) -> None:
    show = SHOW.get(argument or "settings")
    if show is None:
        raise failure.usage(
            f"/show does not know {argument}", failure.did_you_mean(argument, SHOW), COMMANDS["show"].usage
        )
    show(chat)


def _show_model(chat: Chat) -> None:
    for line in chat.describe():
        console().line(line)


def _show_settings(chat: Chat) -> None:
    shown = [setting for setting in BY_NAME.values() if setting.group in (GENERATION, STRUCTURE)]
    width = max(len(setting.name) for setting in shown)
    for setting in shown:
        value = chat.settings.values[setting.name]
        console().line(f"{setting.name:<{width}}  {value_in_words(setting, value.value)}  ({value.origin})")


def _show_system(chat: Chat) -> None:
    console().line(chat.settings.text("system") or "there is no system message")


def _show_stats(chat: Chat) -> None:
    if chat.last is None:
        console().line("there is no answer yet")
    else:
        console().line(figures(chat.last, chat.settings.thinking, in_chat=True))
        console().line(f"seed {chat.last.stats.seed}")


SHOW: dict[str, Callable[[Chat], None]] = {
    "model": _show_model,
    "settings": _show_settings,
    "system": _show_system,
    "stats": _show_stats,
}

COMMANDS: dict[str, ChatCommand] = {
    "help": ChatCommand("/help", "this list", _help),
    "clear": ChatCommand("/clear", "forget the conversation", _clear),
    "set": ChatCommand("/set SETTING", "change a setting of this chat:", _set),
    "show": ChatCommand("/show WHAT", f"show what is in use: {', '.join(SHOW)}", _show),
    "continue": ChatCommand("/continue", "go on with an answer that was cut", _continue),
    "retry": ChatCommand("/retry", "answer the last message again", _retry),
    "undo": ChatCommand("/undo", "take back the last message and its answer", _undo),
    "file": ChatCommand("/file PATH", "put the text of a file before the next message", _file),
    "grammar": ChatCommand("/grammar FILE", "answers follow this grammar; off frees them", _grammar),
    "bye": ChatCommand("/bye", "leave (also /exit, /quit, Ctrl-D)", _bye, ("exit", "quit")),
}
BY_WORD: dict[str, ChatCommand] = {
    word: command for name, command in COMMANDS.items() for word in (name, *command.aliases)
}


def help_lines() -> list[str]:
    """The list of ``/help``, in lines of less than 80 columns."""
    rows: list[tuple[str, str]] = []
    for name, command in COMMANDS.items():
        rows.append((command.usage, command.help))
        if name == "set":
            rows += [(f"  {setting.usage}", setting.help) for setting in SET.values()]
    rows += [
        ('"""', "opens and closes a message of several lines"),
        ("Tab", "completes a command"),
        ("Ctrl-C", "stops an answer; twice on an empty line it leaves"),
    ]
    width = max(len(usage) for usage, _ in rows)
    return [f"{usage:<{width}}  {help}" for usage, help in rows]


def is_command(text: str) -> bool:
    """The message is a command: one line that begins with a slash, or with a colon and a word.

    A path, a smiley, or a line that begins with a space is none.
    """
    word = text[1:].split(" ")[0]
    if "\n" in text or not text or (text[0] == ":" and not word.isalpha()):
        return False
    return text[0] in "/:" and "/" not in word


def completions(line: str) -> list[str]:
    """What may stand in the place of the last word of a command that is being typed."""
    first, *words = line.split(" ")
    last = words[-1] if words else first
    if not words:
        known = [first[0] + word for word in BY_WORD]
    elif first[1:] in ("file", "grammar"):
        known = glob.glob(glob.escape(last) + "*")
    else:
        known = {"set": [*SET], "show": [*SHOW]}.get(first[1:], []) if len(words) == 1 else []
    return sorted(word for word in known if word.startswith(last))


def run_command(chat: Chat, text: str) -> None:
    """Runs a command; what is wrong with it is said and the chat goes on.

    Raises:
        Bye: the user leaves.
    """
    word, _, argument = text[1:].partition(" ")
    command = BY_WORD.get(word)
    try:
        if command is None:
            near = nearest(word, BY_WORD)
            why = f"did you mean /{near}?" if near else f"known are /{', /'.join(COMMANDS)}"
            what = f"there is no command /{word}" if word else "a line that begins with / is a command"
            raise failure.usage(what, why, "/help; a space before the / sends the line to the model")
        command.run(chat, argument.strip())
    except ColibriError as fault:
        failure.report(fault)
