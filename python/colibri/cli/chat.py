"""``colibri chat``: a conversation on a terminal, or one line a turn from a pipe."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from colibri.cli import answer, failure
from colibri.cli.chat_commands import Bye, completions, is_command, run_command
from colibri.cli.console import console
from colibri.cli.input import Leave, PipeReader, Reader, TerminalReader
from colibri.cli.interrupt import interrupts
from colibri.cli.models import ModelChoice, banner, choose_model, describe_model, memory_lines, open_model
from colibri.cli.options import (
    DOWNLOAD_SETTINGS,
    GENERATION_SETTINGS,
    MODEL_SETTINGS,
    STRUCTURE_SETTINGS,
    WORK_OUTPUT,
    VerbCommand,
    takes,
)
from colibri.cli.structure import OF_TOOLS, Structure, readers_of_standard_input, structure_of
from colibri.config import Settings
from colibri.errors import ColibriError, ContextError, error

if TYPE_CHECKING:
    from colibri.chat import Session
    from colibri.generation import Stream
    from colibri.model import Model
    from colibri.results import Result


@click.command(name="chat", cls=VerbCommand)
@takes(
    *MODEL_SETTINGS,
    *DOWNLOAD_SETTINGS,
    *GENERATION_SETTINGS,
    *STRUCTURE_SETTINGS,
    "system",
    "show_thinking",
    "confirm_over",
    "no_stats",
    *WORK_OUTPUT,
)
def command(settings: Settings) -> None:
    """Talk to a model.

    On a terminal: /help lists the commands. From a pipe one line is one turn, and the end of the pipe
    ends the chat.
    """
    screen = console()
    screen.ends_lines = True
    for flag in readers_of_standard_input(settings):
        raise failure.usage(f"{flag} cannot be - in a chat", "standard input carries the messages")
    structure = structure_of(settings)
    choice = choose_model(settings)
    with open_model(settings, choice) as model:
        for line in banner(choice, model.plan, settings.thinking):
            screen.info(line)
        screen.info()
        reader: Reader
        if screen.in_is_terminal:
            reader = TerminalReader(screen, settings.environment.history_file, completions)
        else:
            reader = PipeReader()
        with model.session(settings.text("system")) as session:
            Chat(model, session, choice, settings, reader, structure).run()


def _with_way_out(fault: ColibriError) -> ColibriError:
    """A context that is too short, with what can be done in a chat."""
    code, message, why, fix = fault.args
    return error(code, message, why, f"{answer.MAKE_ROOM}, or start again with {fix}")


class Chat:
    """One conversation and its settings."""

    def __init__(
        self,
        model: Model,
        session: Session,
        choice: ModelChoice,
        settings: Settings,
        reader: Reader,
        structure: Structure,
    ) -> None:
        self._model, self._session, self._choice, self._reader = model, session, choice, reader
        self.settings = settings
        # What answers may be, and the tools that they may call where nothing else binds them.
        self.structure = structure
        self.tools = structure if settings.text("tools") is not None else Structure()
        self.tool_settings = {name: settings.values[name] for name in ("tools", *OF_TOOLS)}
        # Texts of /file that wait for the next message.
        self._attached: list[str] = []
        self.last: Result | None = None

    def run(self) -> None:
        """Reads and answers until the user leaves."""
        try:
            while (text := self._reader.read()) is not None:
                if is_command(text.rstrip()):
                    run_command(self, text.strip())
                else:
                    self._say(text)
        except Bye:
            pass
        except Leave:
            console().line()
            raise failure.Stop(failure.SIGINT) from None

    def _say(self, text: str) -> None:
        if self._answer(self._session.stream, "\n\n".join([*self._attached, text])):
            self._attached.clear()

    def _answer(self, start: Callable[..., Stream], *arguments: str, **overrides: object) -> bool:
        """Streams an answer with its figures; says whether it ended by itself.

        An error is said and the chat goes on.
        """
        # A press that came when the last answer was already complete has nothing to do with this one.
        interrupts().forgive()
        self._session.system = self.settings.text("system")
        try:
            given = answer.stream_answer(
                functools.partial(start, *arguments), self.settings, **self.structure.options, **overrides
            )
        except ColibriError as fault:
            shown = _with_way_out(fault) if isinstance(fault, ContextError) else fault
            if not console().in_is_terminal or interrupts().exit_code not in (0, failure.SIGINT):
                raise shown from None
            failure.report(shown)
            return False
        result = self.last = given.result
        if self.settings.flag("json"):
            console().out_object(answer.as_json(self._choice.name, result, self.structure.notes))
        code = given.exit_code()
        if code == failure.INCOMPLETE:
            console().warn(given.incomplete_line())
        if code not in (0, failure.INCOMPLETE):
            self._stopped(given)
        elif not self.settings.flag("no_stats"):
            console().info(answer.figures(result, self.settings.thinking, in_chat=True), "dim")
        answer.show_details(result)
        return bool(result.token_ids) or not given.exit_code()

    def _stopped(self, given: answer.Answer) -> None:
        """Says what was kept. On a terminal the chat goes on, unless the program was asked to end."""
        code = given.exit_code()
        interrupts().forgive()
        again = "; kept: sending it again continues from there" if given.in_prefill() else ""
        console().line(given.stopped_line() + again, "dim")
        if code != failure.TIMEOUT and (code != failure.SIGINT or not console().in_is_terminal):
            raise failure.Stop(code)

    # What the commands do.

    def clear(self) -> None:
        """Forgets the conversation."""
        self._session.clear()
        self._attached.clear()

    def attach(self, text: str) -> None:
        """Keeps a text for the next message."""
        self._attached.append(text.rstrip("\n"))

    def retry(self) -> None:
        """Answers the last message again, with another seed."""
        question = self.undo()
        self._answer(self._session.stream, question, seed=None)

    def undo(self) -> str:
        """Takes back the last message with its answer, and returns the message."""
        if not self._session.turns:
            raise failure.usage(
                "there is no earlier message", "nothing has been answered yet", "type a message first"
            )
        question = str(self._session.messages[-2]["content"])
        self._session.rewind(1)
        return question

    def continue_answer(self) -> None:
        """Goes on with the last answer where it was cut."""
        # What /grammar off let go of shall not come back.
        free = {name: None for name in ("grammar", "tools") if name not in self.structure.options}
        self._answer(self._session.resume, **free)

    @property
    def turns(self) -> int:
        """Answered messages."""
        return self._session.turns

    def keep_history(self, kept: bool) -> None:
        """Whether messages are written to the history file."""
        if isinstance(self._reader, TerminalReader):
            self._reader.keep_history(kept)

    def describe(self) -> list[str]:
        """Facts about the model in use."""
        plan = self._model.plan
        return [describe_model(plan.model.to_dict()), *memory_lines(plan)]
