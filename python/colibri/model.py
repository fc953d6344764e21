"""An open model: the front door of the Python API.

Owns `load`, `plan`, `plan_remote`, `inspect` and `Model`. Refuses ambiguous prompts, unknown options and use
after close. What must hold: one generation at a time on a model; prefix reuse changes times, never tokens;
arrays handed out belong to the caller.
"""

from __future__ import annotations

import operator
import os
import threading
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from colibri import engine
from colibri.chat import Session, chat_request
from colibri.closing import Handle
from colibri.engine import Engine, Options, ProgressCallback, Size
from colibri.errors import error, invalid_value
from colibri.generation import KvCache, Stream
from colibri.model_folder import DEMO, ModelFolder, folder_of
from colibri.request import (
    Encoded,
    GenerationOptions,
    Request,
    build_request,
    check_options,
    check_text,
    encode_prompt,
    too_long,
)
from colibri.results import Chunk, ModelInfo, Plan, PlanReport, Result
from colibri.sampling import SamplingParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from colibri.hub_files import RemoteModel
    from colibri.template import ChatTemplate, Message
    from colibri.tokenizer import Tokenizer

    ResponseFormat = Mapping[str, Any] | type | None

_PROMPT_NAMES = ("prompt", "params", "messages", "tokens", "system", "raw")
_COMPLETION_NAMES = ("messages", "model", "stream", "response_format", "max_completion_tokens")


def load(
    path: str | os.PathLike[str] = DEMO,
    *,
    ram: Size = "auto",
    ctx: int | str = "auto",
    threads: int | None = None,
    io: str = "auto",
    numerics: str = "quantized",
    kernels: str = "auto",
    on_progress: ProgressCallback | None = None,
) -> Model:
    """Opens a model. Use it in a `with` statement, or close it.

    Args:
        path: a folder with a colibri container or a small Hugging Face checkpoint; `demo` is the embedded
            model (`./demo` is a folder of that name).
        ram: memory that colibri may use: bytes, `20GB`, `20GiB`, `75%` or `auto`.
        ctx: tokens of the KV cache, or `auto`.
        threads: compute threads; None takes the physical cores the process may use.
        io: how experts are read: `auto`, `direct`, `buffered`, `mmap`.
        numerics: `quantized` (15-bit activations for quantised weights), `a8`, or `f32` (dequantised
            weights).
        kernels: `auto` or the name of a kernel set; every set gives the same bits.
        on_progress: `f(phase, done, total)` while loading; returning False raises `Cancelled`.

    Raises:
        ModelNotFound, ModelError: there is no model, or it is damaged or unsupported.
        ResourceError: it does not fit the memory; nothing has been read then.
        StorageError: reading failed.
        InvalidValue: an option is not understood.
    """
    folder = folder_of(path)
    options = Options(ram, ctx, threads, io, numerics, kernels)
    return Model(Engine.open(str(folder), options, on_progress), folder)


def plan(
    path: str | os.PathLike[str] = DEMO,
    *,
    ram: Size = "auto",
    ctx: int | str = "auto",
    threads: int | None = None,
    io: str = "auto",
    numerics: str = "quantized",
    kernels: str = "auto",
    measure: bool = True,
) -> PlanReport:
    """Says where the weights would live if the model were loaded like this, and how fast it would be.

    Only headers are read, and with `measure` a second's worth of weights, to learn how fast the disk is. The
    other arguments are those of `load`.

    Raises:
        ModelNotFound, ModelError: there is no model, or its headers are faulty.
        ResourceError: the model does not fit the memory.
        InvalidValue: an option is not understood.
    """
    if not isinstance(measure, bool):
        raise invalid_value("measure", measure, "True or False")
    return engine.plan(str(folder_of(path)), Options(ram, ctx, threads, io, numerics, kernels), measure)


def plan_remote(
    repository: str,
    *,
    revision: str | None = None,
    offline: bool = False,
    ram: Size = "auto",
    ctx: int | str = "auto",
    threads: int | None = None,
    io: str = "auto",
) -> PlanReport:
    """The plan for a model on the Hugging Face hub, from its configuration and the list of its files alone.

    Nothing is downloaded beside these small files, and no speed is measured. A checkpoint is planned as the
    container that `convert` would make of it.

    Args:
        repository: `OWNER/NAME`.
        revision: a branch, tag or commit; None is the main branch.
        offline: whether the network may not be used; then this fails.
        ram: as `load` takes it, as are `ctx`, `threads` and `io`.
        ctx: see `ram`.
        threads: see `ram`.
        io: see `ram`.

    Raises:
        DownloadError: the hub cannot be asked.
        ModelNotFound, ModelError: the repository holds no model, or one of an unknown kind.
        ResourceError: the model does not fit the memory.
        InvalidValue: an option is not understood.
    """
    from colibri import hub

    if not isinstance(repository, str) or not hub.is_repository(repository):
        raise invalid_value("repository", repository, "OWNER/NAME as on Hugging Face")
    if revision is not None and (not isinstance(revision, str) or not revision):
        raise invalid_value("revision", revision, "a branch, a tag or a commit, or None")
    if not isinstance(offline, bool):
        raise invalid_value("offline", offline, "True or False")
    options = Options(ram, ctx, threads, io)
    options.native()
    remote = hub.describe(repository, revision, offline)
    return engine.plan_remote(repository, remote.config, _listing(remote), options)


def _listing(remote: RemoteModel) -> dict[str, Any]:
    """What the core is told of a repository's files; of a malformed index only what can be used."""
    index = remote.index or {}
    metadata, weight_map = index.get("metadata"), index.get("weight_map")
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    usable = isinstance(weight_map, dict) and all(isinstance(name, str) for name in weight_map.values())
    return {
        "repository": remote.repo_id,
        "files": [(name, size) for name, size in remote.files if "/" not in name],
        "weight_map": weight_map if usable else None,
        "total_size": size if isinstance(size, int) and 0 <= size < 2**63 else None,
        "manifest": remote.manifest,
    }


def inspect(path: str | os.PathLike[str] = DEMO) -> dict[str, Any]:
    """Reads a model folder's headers and sums them up; no weight is read.

    Returns:
        JSON values: `version` (1), `model` (the fields of `ModelInfo`), `runs` (whether this version runs the
        family), `container` with kind (`colibri`, `public` or `huggingface`) and group size, `classes` of
        tensors with formats and sizes, `absent` and `unused` parts, `types`, `files`, `tensors` with format,
        shape and size, and `text`: what travels with the weights.

    Raises:
        ModelNotFound, ModelError: there is no model, or its headers are faulty.
    """
    return engine.inspect(str(folder_of(path)))


class Model(Handle):
    """A loaded model; made by `load`."""

    def __init__(self, engine: Engine, path: Path) -> None:
        self._engine = engine
        self._folder = ModelFolder(path, engine.info.vocab_size, engine.info.eos_token_ids)
        self._cache = KvCache(engine)
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()

    @property
    def info(self) -> ModelInfo:
        """Facts about the model."""
        return self._engine.info

    @property
    def plan(self) -> Plan:
        """Where its weights live: the memory part of what `colibri.plan` answers."""
        return self._engine.plan

    @property
    def kernels(self) -> str:
        """The kernel set in use."""
        return self._engine.kernels

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; a `ModelError` (`tokenizer_missing`) when the folder has none."""
        return self._folder.tokenizer

    @property
    def template(self) -> ChatTemplate:
        """The chat template; a `ModelError` (`template_invalid`) when the folder has none."""
        return self._folder.template

    @property
    def sampling_defaults(self) -> SamplingParams:
        """What `generation_config.json` says; None where it is silent."""
        return self._folder.defaults.params

    @property
    def stop_ids(self) -> frozenset[int]:
        """The end tokens of both configuration files; each ends a generation on every path."""
        return self._folder.stop_ids

    def generate(
        self,
        prompt: str | None = None,
        params: SamplingParams | None = None,
        *,
        messages: Sequence[Message] | None = None,
        tokens: Sequence[int] | NDArray[np.integer[Any]] | None = None,
        system: str | None = None,
        raw: bool = False,
        **options: Unpack[GenerationOptions],
    ) -> Result:
        """Generates an answer and returns it whole.

        Args:
            prompt: one message, rendered by the chat template; with `raw` the text as it is.
            params: sampling parameters; keyword arguments override its fields.
            messages: a conversation in the OpenAI format, instead of `prompt`.
            tokens: token ids, instead of `prompt`.
            system: a system message before `prompt`.
            raw: whether `prompt` goes to the model without a template.
            **options: `temperature`, `top_p`, `top_k`, `min_p`, `repeat_penalty`, `presence_penalty`,
                `frequency_penalty`, `max_tokens` and `seed` (see `SamplingParams`); `stop`, `timeout`,
                `cancel`, `logits_processors`, `on_progress`, `wait`, `think`, `reasoning_effort`, `grammar`,
                `tools`, `tool_choice`, `parallel_tool_calls`, `tools_lenient`, `json_whitespace`,
                `grammar_mode`, `draft` and `draft_max` (see `GenerationOptions`).

        Raises:
            TypeError: an option is unknown; the message suggests the nearest one.
            InvalidValue: a value is out of range, or the prompt is empty.
            ContextError: the prompt is longer than the context.
            ModelError: the model has no tokenizer or no chat template.
            GrammarError: a tool's schema asks for what cannot be enforced, or a grammar leads nowhere.
            Busy: another generation runs and `wait` is false.
        """
        return self.stream(
            prompt, params, messages=messages, tokens=tokens, system=system, raw=raw, **options
        ).finish()

    def stream(
        self,
        prompt: str | None = None,
        params: SamplingParams | None = None,
        *,
        messages: Sequence[Message] | None = None,
        tokens: Sequence[int] | NDArray[np.integer[Any]] | None = None,
        system: str | None = None,
        raw: bool = False,
        **options: Unpack[GenerationOptions],
    ) -> Stream:
        """Generates an answer chunk by chunk; arguments and errors are those of `generate`."""
        check_options(options, params, _PROMPT_NAMES)
        self._engine.native()
        if sum(given is not None for given in (prompt, messages, tokens)) != 1:
            raise error(
                "invalid_value",
                "the prompt is not clear",
                "exactly one of prompt, messages and tokens must be given",
                "pass a text, or messages=[...], or tokens=[...]",
            )
        if not isinstance(raw, bool):
            raise invalid_value("raw", raw, "True or False")
        if system is not None and not isinstance(system, str):
            raise invalid_value("system", system, "a text, or None")
        if options.get("tools") is not None and (raw or tokens is not None):
            raise invalid_value(
                "tools", options["tools"], "given together with a prompt that the chat template renders"
            )
        if system is not None and (prompt is None or raw):
            raise invalid_value(
                "system", system, "given together with a prompt that the chat template renders"
            )
        if tokens is not None:
            request = self._token_request(_token_list(tokens, self._engine), params, options)
        elif raw:
            encoded = encode_prompt(
                self._engine, self.tokenizer, check_text("prompt", prompt), options, add_special_tokens=True
            )
            request = self._token_request(encoded, params, options)
        else:
            if messages is None:
                head: list[Message] = [] if system is None else [{"role": "system", "content": system}]
                messages = [*head, {"role": "user", "content": check_text("prompt", prompt)}]
            request = chat_request(self._engine, self._folder, messages, params, options)
        return Stream(self._engine, self._cache, request, self._folder.tokenizer_or_none())

    async def astream(
        self,
        prompt: str | None = None,
        params: SamplingParams | None = None,
        *,
        messages: Sequence[Message] | None = None,
        tokens: Sequence[int] | NDArray[np.integer[Any]] | None = None,
        system: str | None = None,
        raw: bool = False,
        **options: Unpack[GenerationOptions],
    ) -> AsyncIterator[Chunk]:
        """The chunks of `stream`, computed in a thread; cancelling the task stops the generation."""
        import asyncio

        stream = self.stream(
            prompt, params, messages=messages, tokens=tokens, system=system, raw=raw, **options
        )
        cancel = stream.cancel_token()
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Chunk | BaseException | None] = asyncio.Queue()

        def put(item: Chunk | BaseException | None) -> None:
            # The loop may be gone when the consumer has given up.
            if not loop.is_closed():
                loop.call_soon_threadsafe(queue.put_nowait, item)

        def pump() -> None:
            try:
                for chunk in stream:
                    put(chunk)
                put(None)
            except BaseException as fault:
                put(fault)

        threading.Thread(target=pump, name="colibri-astream", daemon=True).start()
        try:
            while (item := await queue.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            cancel.cancel()

    def logits(
        self,
        tokens: Sequence[int] | NDArray[np.integer[Any]],
        *,
        on_progress: ProgressCallback | None = None,
        wait: bool = True,
    ) -> NDArray[np.float32]:
        """Logits of every position of a token sequence, float32 [n, vocab_size]; the caller owns them.

        Raises:
            InvalidValue: no tokens, or an id outside the vocabulary.
            ContextError: more tokens than the context holds.
            Cancelled: `on_progress` returned False.
        """
        self._engine.native()
        if not isinstance(wait, bool):
            raise invalid_value("wait", wait, "True or False")
        ids = _token_list(tokens, self._engine)
        if not ids:
            raise invalid_value("tokens", ids, "at least one token id")
        watcher = engine.watch(on_progress=on_progress)
        self._engine.acquire(wait)
        try:
            return self._engine.logits(ids, watcher)
        finally:
            self._engine.release()

    def session(self, system: str | None = None) -> Session:
        """A conversation with a KV cache of its own.

        The plan counts one KV cache. `generate` gives its own back here; every further open session adds one.
        """
        self._engine.native()
        self._cache.drop()
        session = Session(self._engine, self._folder, system)
        self._sessions.add(session)
        return session

    @overload
    def create_chat_completion(
        self,
        messages: Sequence[Message],
        *,
        model: str | None = None,
        stream: Literal[False] = False,
        response_format: ResponseFormat = None,
        max_completion_tokens: int | None = None,
        **options: Unpack[GenerationOptions],
    ) -> dict[str, Any]: ...

    @overload
    def create_chat_completion(
        self,
        messages: Sequence[Message],
        *,
        model: str | None = None,
        stream: Literal[True],
        response_format: ResponseFormat = None,
        max_completion_tokens: int | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Iterator[dict[str, Any]]: ...

    def create_chat_completion(
        self,
        messages: Sequence[Message],
        *,
        model: str | None = None,
        stream: bool = False,
        response_format: ResponseFormat = None,
        max_completion_tokens: int | None = None,
        **options: Unpack[GenerationOptions],
    ) -> dict[str, Any] | Iterator[dict[str, Any]]:
        """An answer in the shape of the OpenAI interface: a dictionary, or with `stream` its chunks.

        Args:
            messages: the conversation.
            model: repeated in the answer; it chooses nothing, this model answers.
            stream: whether chunks are yielded.
            response_format: None or `{"type": "text"}` leaves the answer free; `{"type": "json_object"}` is
                any JSON object; `{"type": "json_schema", "json_schema": {"schema": {...}}}` is JSON of that
                schema, of which everything is enforced or refused, unless `"strict": False` beside the schema
                lets what cannot be enforced pass; a class with `model_json_schema()` is its schema. White
                space is flexible unless `json_whitespace` says otherwise.
            max_completion_tokens: the newer name of `max_tokens`.
            **options: those of `generate`.

        Raises:
            TypeError, InvalidValue, ContextError, ModelError, GrammarError, Busy: see `generate`.
        """
        from colibri.completion import completion, completion_chunks, completion_options

        check_options(options, None, _COMPLETION_NAMES)
        if not isinstance(stream, bool):
            raise invalid_value("stream", stream, "True or False")
        if model is not None and not isinstance(model, str):
            raise invalid_value("model", model, "a text, or None")
        given = completion_options(options, response_format, max_completion_tokens)
        chunks, name = self.stream(messages=messages, **given), model or self.info.name
        return completion_chunks(chunks, name) if stream else completion(chunks, name)

    def close(self) -> None:
        """Frees memory and files. May be called again; other use afterwards is a `ValueError`."""
        self._engine.close()
        self._cache.drop()
        for session in self._sessions:
            session.close()

    def _token_request(
        self, ids: Sequence[int] | Encoded, params: SamplingParams | None, options: GenerationOptions
    ) -> Request:
        return build_request(ids, params, options, self._folder.defaults, stop_ids=self.stop_ids)

    def __repr__(self) -> str:
        state = (
            "closed"
            if self._engine.closed
            else f"{self.info.family}, ctx {self.plan.context}, {self.kernels}"
        )
        return f"Model({self.info.name!r}, {state})"


def _token_list(tokens: Sequence[int] | NDArray[np.integer[Any]], engine: Engine) -> list[int]:
    """Token ids as Python integers, each inside the vocabulary, no more than the context holds."""
    wrong = invalid_value("tokens", tokens, "a one-dimensional sequence of integers")
    if not isinstance(tokens, Sequence) and not hasattr(tokens, "dtype"):
        raise wrong
    try:
        # Looked at first: an array may claim any length without holding it.
        if len(tokens) > engine.plan.context:
            raise too_long(len(tokens), engine)
        ids = [operator.index(token) for token in tokens]
    except TypeError:
        raise wrong from None
    if isinstance(tokens, (bytes, bytearray, memoryview)) or any(isinstance(token, bool) for token in tokens):
        raise wrong
    vocab_size = engine.info.vocab_size
    for index, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            raise invalid_value(f"tokens[{index}]", token, f"a token id from 0 to {vocab_size - 1}")
    return ids
