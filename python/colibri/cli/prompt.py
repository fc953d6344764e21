"""What ``generate`` sends: files, standard input, words, or a conversation from a file.

The order is files, standard input, then the words, with a blank line between them. Text must be UTF-8; a
file that is not is named with the place of the first wrong byte.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import stat
import sys
from collections.abc import Iterator, Sequence

from colibri.cli import failure
from colibri.cli.console import console
from colibri.errors import error
from colibri.files import TooLarge, read_descriptor, read_file, reason, user_path

STDIN = "-"
STANDARD_INPUT = "standard input"
# The most bytes of one text.
TEXT_LIMIT = 64 << 20
# After this time without a byte a line says what is being waited for.
WAIT_SECONDS = 2.0

Message = dict[str, object]


def read_standard_input(what: str = "the prompt", limit: int = TEXT_LIMIT) -> str:
    """All of standard input, at most `limit` bytes; `what` is wanted from it.

    Raises:
        InvalidValue: it cannot be read or is not UTF-8. ContextError: it has more than `limit` bytes.
    """
    with readable(STANDARD_INPUT, what):
        if not select.select([0], [], [], WAIT_SECONDS)[0]:
            console().info(f"reading {what} from standard input, until its end (Ctrl-D on a terminal)", "dim")
        content = read_descriptor(0, limit)
    return decode(content, STANDARD_INPUT)


def standard_input_is_offered() -> bool:
    """Standard input is a pipe, a socket or a file, so somebody wants it read."""
    if sys.stdin is None:
        return False
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def read_text(path: str, *, regular: bool = False) -> str:
    """The text of a file, or of standard input for ``-``.

    Args:
        path: the file. regular: whether pipes and devices are refused.

    Raises:
        InvalidValue: the file cannot be read or is not UTF-8. ContextError: it has more than `TEXT_LIMIT`
        bytes.
    """
    if path == STDIN:
        return read_standard_input()
    with readable(path):
        content = read_file(user_path(path), TEXT_LIMIT, regular=regular)
    return decode(content, path)


@contextlib.contextmanager
def readable(place: str, what: str = "the prompt") -> Iterator[None]:
    """Turns a failure to read a text into an error that names the place; `what` is wanted from it."""
    try:
        yield
    except TooLarge as fault:
        if what != "the prompt":
            raise failure.usage(
                f"{place} is too long for {what}", reason(fault), "write a shorter one"
            ) from None
        raise error(
            "context_length_exceeded",
            f"{place} is too long for a prompt",
            reason(fault),
            "send less: no model takes as much",
        ) from None
    except OSError as fault:
        fix = f"give the path of a text file; see {failure.help_command()}"
        raise failure.usage(f"cannot read {place}", reason(fault), fix) from None


def decode(content: bytes, place: str) -> str:
    """The text of UTF-8; an `InvalidValue` that names the place and the first wrong byte."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        why = f"byte {fault.start:,} of {len(content):,} does not belong to a character"
        raise failure.usage(
            f"{place} is not UTF-8 text", why, "convert it, for example with iconv -t UTF-8"
        ) from None


def assemble(
    words: Sequence[str], files: Sequence[str], *, raw: bool, has_messages: bool, stdin_is_taken: bool = False
) -> str:
    """The text of the prompt; standard input may be taken for something else.

    Raises:
        InvalidValue: there is nothing to send, or a text cannot be read.
    """
    if files.count(STDIN) + stdin_is_taken > 1:
        raise failure.usage("- is given twice", "standard input can be read once")
    parts = [read_text(path) for path in files]
    if STDIN not in files and not stdin_is_taken and standard_input_is_offered():
        parts.append(read_standard_input())
    parts.append(" ".join(words))
    if not raw:
        parts = [part.rstrip("\n") for part in parts]
    text = ("" if raw and len(words) == 0 else "\n\n").join(part for part in parts if part)
    if not text.strip() and not has_messages:
        why = "no words, no file and nothing on standard input"
        raise failure.usage("there is no prompt", why, 'colibri generate "Tell me a story about a fox."')
    return text


def read_messages(path: str) -> list[Message]:
    """The conversation of ``--messages``.

    Raises:
        InvalidValue: the file is not a JSON list of messages with role and content.
    """
    text = read_text(path)
    try:
        value = json.loads(text)
    except ValueError as fault:
        raise failure.usage(f"{path} is not JSON", str(fault), _MESSAGES_FORM) from None
    except RecursionError:
        raise failure.usage(f"{path} is nested too deeply", "", _MESSAGES_FORM) from None
    if isinstance(value, dict):
        value = value.get("messages")
    if not isinstance(value, list) or not value:
        raise failure.usage(f"{path} holds no list of messages", "", _MESSAGES_FORM)
    for index, message in enumerate(value):
        if (
            not isinstance(message, dict)
            or not isinstance(message.get("role"), str)
            or "content" not in message
        ):
            raise failure.usage(f"message {index} of {path} has no role or no content", "", _MESSAGES_FORM)
    return value


_MESSAGES_FORM = 'write it as  [{"role": "user", "content": "hello"}]'


def conversation(text: str, messages: list[Message], system: str | None) -> list[Message]:
    """The messages to send.

    Raises:
        InvalidValue: there are two system messages.
    """
    result = list(messages)
    if system is not None:
        if result and result[0]["role"] == "system":
            raise failure.usage(
                "there are two system messages", "--system and the first of --messages", "leave one out"
            )
        result.insert(0, {"role": "system", "content": system})
    if text.strip():
        result.append({"role": "user", "content": text})
    return result
