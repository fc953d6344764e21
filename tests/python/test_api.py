"""The Python API: opening, errors, several callers at once, logits, conversion."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import pickle
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import colibri
import numpy as np
import pytest
from colibri.errors import TAXONOMY, ColibriError, error

PROMPT = "Write a story about a fox."
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24}


def _never_end(tokens: Any, logits: Any) -> None:
    logits[2540:] = -np.inf


# Opening and closing.


def test_facts_and_plan_of_a_model(model: colibri.Model, demo_hf: Path) -> None:
    info, plan = model.info, model.plan
    assert (info.family, info.layers, info.moe_layers) == ("glm_moe_dsa", 6, 5)
    assert (info.experts, info.experts_per_token, info.vocab_size) == (32, 4, 2560)
    assert info.has_mtp
    assert info.has_indexer
    assert info.path == str(demo_hf)
    assert plan.model == info
    assert plan.context == 2048
    parts = plan.resident_bytes + plan.kv_bytes + plan.scratch_bytes + plan.cache_bytes
    assert plan.projected_peak == parts <= plan.ram_budget == 10**9
    assert json.loads(json.dumps(plan.to_dict()))["model"]["layers"] == 6
    assert model.kernels in plan.machine.kernels == colibri.machine().kernels


def test_plan_and_inspect_read_headers_only(demo_hf: Path, tmp_path: Path) -> None:
    assert colibri.plan(demo_hf, ram="1GB", ctx=2048).model.layers == 6
    summary = colibri.inspect(demo_hf)
    assert summary["container"]["kind"] == "huggingface"
    assert summary["text"]["tokenizer"]
    assert sum(tensor["bytes"] for tensor in summary["tensors"]) <= sum(
        file["bytes"] for file in summary["files"]
    )
    assert {kind["dtype"] for kind in summary["types"]} == {tensor["dtype"] for tensor in summary["tensors"]}
    # A folder whose weights are holes has the same headers.
    for file in demo_hf.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, tmp_path)
            continue
        with file.open("rb") as source, (tmp_path / file.name).open("wb") as target:
            length = source.read(8)
            target.write(length + source.read(int.from_bytes(length, "little")))
            target.truncate(file.stat().st_size)
    assert colibri.plan(tmp_path, ram="1GB", ctx=2048).resident_bytes > 0


def test_loading_reports_progress_and_can_be_stopped(demo_hf: Path) -> None:
    events: list[tuple[str, int, int]] = []
    with colibri.load(demo_hf, ram="1GB", io="buffered", on_progress=lambda *event: events.append(event)):
        pass
    assert events
    assert events[-1][0] == "load"
    assert events[-1][1] == events[-1][2] > 0
    with pytest.raises(colibri.Cancelled):
        colibri.load(demo_hf, ram="1GB", io="buffered", on_progress=lambda *event: False)


def test_close_is_idempotent_and_use_afterwards_is_a_value_error(demo_hf: Path) -> None:
    opened = colibri.load(demo_hf, ram="1GB")
    session = opened.session()
    stream = opened.stream(PROMPT, **GREEDY)
    next(stream)
    opened.close()
    opened.close()
    for use in (
        lambda: opened.generate("hi"),
        lambda: opened.stream("hi"),
        lambda: opened.logits([1]),
        lambda: opened.session(),
        lambda: session.chat("hi"),
        lambda: next(stream),
    ):
        with pytest.raises(ValueError, match="closed"):
            use()
    assert "closed" in repr(opened)
    assert opened.info.layers == 6


def test_one_line_reprs(model: colibri.Model) -> None:
    result = model.generate(PROMPT, **GREEDY)
    with model.session() as session:
        for value in (model, session, result, model.tokenizer, model.template, colibri.CancelToken()):
            assert "\n" not in repr(value)
            assert type(value).__name__ in repr(value)


def test_models_are_not_pickled_or_copied(model: colibri.Model) -> None:
    with model.session() as session:
        for value in (model, session, colibri.CancelToken()):
            for use in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError):
                    use(value)


def test_native_classes_are_frozen(model: colibri.Model) -> None:
    token = colibri.CancelToken()
    with pytest.raises(AttributeError):
        token.cancelled = True  # type: ignore[misc]
    with pytest.raises(AttributeError):
        token.extra = 1  # type: ignore[attr-defined]


def test_every_public_name_exists() -> None:
    for name in colibri.__all__:
        assert getattr(colibri, name) is not None
    assert set(colibri.__all__) <= set(dir(colibri))
    with pytest.raises(AttributeError, match="nothing"):
        colibri.nothing  # noqa: B018


# Errors.


def test_an_error_has_three_lines() -> None:
    fault = error("model_not_found", "no model at /x", "no config.json", "give the folder")
    assert isinstance(fault, colibri.ModelNotFound)
    assert str(fault).splitlines() == [
        "error[model_not_found]: no model at /x",
        "  why:  no config.json",
        "  fix:  give the folder",
    ]
    assert (fault.code, fault.exit_status) == ("model_not_found", 3)


def test_the_taxonomy_is_complete() -> None:
    for code, kind in TAXONOMY.items():
        fault = error(code, "what")
        assert type(fault) is kind.error
        assert isinstance(fault, ColibriError)
        assert fault.exit_status == kind.exit_status
    assert issubclass(colibri.InvalidValue, ValueError)
    assert type(error("some_new_slug", "what")) is colibri.EngineError


@pytest.mark.parametrize(
    ("break_it", "kind"),
    [
        (lambda folder: shutil.rmtree(folder), colibri.ModelNotFound),
        (lambda folder: (folder / "model.safetensors").unlink(), colibri.ColibriError),
        (lambda folder: os.truncate(folder / "model.safetensors", 10**6), colibri.ModelError),
        (lambda folder: (folder / "config.json").write_text("{"), colibri.ModelError),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "llama"}'), colibri.ModelError),
    ],
)
def test_damaged_folders_are_typed_errors(oracle: Path, tmp_path: Path, break_it: Any, kind: Any) -> None:
    folder = tmp_path / "model"
    shutil.copytree(oracle / "glm_tiny", folder, ignore=shutil.ignore_patterns("ref"))
    break_it(folder)
    with pytest.raises(kind) as caught:
        colibri.load(folder, ram="1GB")
    assert caught.value.message
    assert caught.value.fix


@pytest.mark.parametrize(
    "options",
    [
        {"ram": "much"}, {"ram": 0}, {"ram": "0%"}, {"ctx": 0}, {"ctx": "long"}, {"ctx": 10**9},
        {"threads": 0}, {"io": "tape"}, {"numerics": "f16"}, {"kernels": "mmx"},
    ],
)  # fmt: skip
def test_options_that_are_not_understood(demo_hf: Path, options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(colibri.InvalidValue, match=name):
        colibri.load(demo_hf, **options)


def test_a_budget_that_is_too_small_is_refused_before_reading(demo_hf: Path) -> None:
    with pytest.raises(colibri.ResourceError) as caught:
        colibri.load(demo_hf, ram="3MB", on_progress=lambda *event: pytest.fail("something was read"))
    assert caught.value.exit_status == 4


def test_a_prompt_longer_than_the_context(demo_hf: Path) -> None:
    with colibri.load(demo_hf, ram="1GB", ctx=64) as short:
        with pytest.raises(colibri.ContextError, match="65") as caught:
            short.generate(tokens=[300] * 65)
        assert "64" in caught.value.message
        with pytest.raises(colibri.ContextError):
            short.logits([300] * 65)
        # A prompt that fills it leaves room for the one token that needs no more cache.
        result = short.generate(tokens=[300] * 64, temperature=0)
        assert len(result.token_ids) + (result.stop_token is not None) == 1
        result = short.generate(tokens=[2542, 2544, *[300] * 58], temperature=0)
        assert result.finish_reason in ("length", "stop")
        assert len(result.token_ids) <= 5


def test_a_folder_without_a_tokenizer_serves_tokens(oracle: Path) -> None:
    with colibri.load(oracle / "glm_sparse", ram="1GB") as bare:
        assert bare.logits([1, 2, 3]).shape == (3, bare.info.vocab_size)
        result = bare.generate(tokens=[1, 2, 3], temperature=0, max_tokens=4)
        assert result.text == ""
        assert len(result.tokens) + (result.stop_token is not None) >= 1
        for use in (lambda: bare.generate("hi", raw=True), lambda: bare.tokenizer):
            with pytest.raises(colibri.ModelError) as caught:
                use()
            assert caught.value.code == "tokenizer_missing"
        with pytest.raises(colibri.ModelError) as caught:
            bare.generate("hi")
        assert caught.value.code == "tokenizer_missing"


# Several at once.


def test_the_other_thread_waits_or_is_told(model: colibri.Model) -> None:
    first = model.stream(PROMPT, **GREEDY)
    next(first)
    caught: list[BaseException] = []
    done: list[colibri.Result] = []

    def impatient() -> None:
        try:
            model.generate("hi", wait=False)
        except BaseException as fault:
            caught.append(fault)

    thread = threading.Thread(target=impatient)
    thread.start()
    thread.join()
    assert isinstance(caught[0], colibri.Busy)
    assert caught[0].code == "queue_full"
    thread = threading.Thread(target=lambda: done.append(model.generate("hi", **GREEDY)))
    thread.start()
    result = first.finish()
    thread.join()
    assert done[0].token_ids
    assert result.token_ids == model.generate(PROMPT, **GREEDY).token_ids


def test_a_thread_does_not_wait_for_itself(model: colibri.Model) -> None:
    with model.stream(PROMPT, **GREEDY) as stream:
        next(stream)
        with pytest.raises(colibri.Busy, match="unfinished"):
            model.generate("hi")


def test_threads_get_the_answers_of_their_prompts(model: colibri.Model) -> None:
    prompts = ["Hello", "Who are you?", PROMPT, "What is 6 * 7?"]
    alone = [model.generate(text, **GREEDY).token_ids for text in prompts]
    together: dict[int, tuple[int, ...]] = {}

    def run(index: int) -> None:
        together[index] = model.generate(prompts[index], **GREEDY).token_ids

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[index] for index in range(len(prompts))] == alone


@pytest.mark.parametrize("io", ["mmap", "direct", "buffered"])
def test_a_forked_process_generates_as_well(demo_hf: Path, io: str) -> None:
    """Threads do not survive a fork; the child builds its own."""
    with colibri.load(demo_hf, ram="1GB", ctx=2048, io=io) as opened:
        expected = opened.generate(PROMPT, **GREEDY).token_ids
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            same = opened.generate(PROMPT, **GREEDY).token_ids == expected
            os.write(writer, b"same" if same else b"other")
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            assert pipe.read() == b"same"
        assert os.waitpid(child, 0)[1] == 0


def test_asynchronous_streams(model: colibri.Model) -> None:
    async def collect() -> list[colibri.Chunk]:
        return [chunk async for chunk in model.astream(PROMPT, **GREEDY)]

    chunks = asyncio.run(collect())
    assert "".join(chunk.text for chunk in chunks) == model.generate(PROMPT, **GREEDY).text

    async def leave_early() -> None:
        async for chunk in model.astream(
            PROMPT, temperature=0, logits_processors=[_never_end], max_tokens=1900
        ):
            if chunk.token is not None:
                raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(leave_early())
    # The model is free again long before that answer would have ended.
    assert model.generate(PROMPT, **GREEDY).finish_reason == "length"

    async def fails() -> None:
        async for _ in model.astream(PROMPT, temperature=-1):
            pass

    with pytest.raises(colibri.InvalidValue):
        asyncio.run(fails())


# Logits.


def test_logits_belong_to_the_caller(model: colibri.Model) -> None:
    logits = model.logits([2542, 2544, 300])
    assert (logits.shape, logits.dtype) == ((3, 2560), np.float32)
    assert logits.flags.writeable
    assert logits.flags.c_contiguous
    kept = logits.copy()
    logits[:] = 0
    assert np.array_equal(model.logits([2542, 2544, 300]), kept)
    assert np.array_equal(model.logits(np.array([2542, 2544], dtype=np.int32)), kept[:2])


def test_a_logits_processor_sees_tokens_and_row(model: colibri.Model) -> None:
    ids = model.tokenizer.encode("[gMASK]<sop>Once")
    seen: list[int] = []

    def force(tokens: Any, logits: Any) -> None:
        assert (tokens.dtype, logits.dtype, logits.shape) == (np.int32, np.float32, (2560,))
        assert tokens.tolist()[: len(ids)] == ids
        seen.append(len(tokens))
        logits[400 + len(tokens) - len(ids)] = 1e6

    result = model.generate(tokens=ids, temperature=0, max_tokens=3, logits_processors=[force])
    assert result.token_ids == (400, 401, 402)
    assert seen == [len(ids), len(ids) + 1, len(ids) + 2]


def test_a_row_without_a_finite_logit_is_an_error(model: colibri.Model) -> None:
    def ruin(tokens: Any, logits: Any) -> None:
        logits[:] = np.nan

    with pytest.raises(colibri.EngineError) as caught:
        model.generate(PROMPT, logits_processors=[ruin])
    assert caught.value.code == "non_finite"
    assert model.generate(PROMPT, **GREEDY).finish_reason == "length"


# Conversion and the embedded model.


def test_a_converted_checkpoint_generates(oracle: Path, tmp_path: Path) -> None:
    source, destination = oracle / "glm_tiny", tmp_path / "converted"
    planned = colibri.convert(source, destination, dry_run=True)
    assert planned.dry_run
    assert not destination.exists()
    events: list[str] = []
    report = colibri.convert(
        source,
        destination,
        experts="q8",
        dense="f32",
        on_progress=lambda phase, done, total: events.append(phase),
    )
    assert set(events) == {"convert"}
    assert json.loads(json.dumps(report.to_dict()))["destination"] == str(destination)
    with colibri.load(destination, ram="1GB") as converted, colibri.load(source, ram="1GB") as original:
        assert converted.info.layers == original.info.layers
        assert converted.stop_ids == original.stop_ids
        assert converted.tokenizer.encode("hello") == original.tokenizer.encode("hello")
        ids = [5, 6, 7, 8]
        assert np.abs(converted.logits(ids) - original.logits(ids)).max() < 0.5


@pytest.mark.parametrize("options", [{"experts": "q2"}, {"dense": "int4"}, {"scale_rule": "best"}])
def test_unknown_formats_are_refused(oracle: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(colibri.InvalidValue, match=name):
        colibri.convert(oracle / "glm_tiny", tmp_path / "out", **options)


def test_a_stopped_conversion_leaves_nothing(oracle: Path, tmp_path: Path) -> None:
    cancel = colibri.CancelToken()
    cancel.cancel()
    with pytest.raises(colibri.Cancelled):
        colibri.convert(oracle / "glm_tiny", tmp_path / "out", cancel=cancel)
    assert list(tmp_path.iterdir()) == []


def test_the_embedded_model_is_the_default() -> None:
    with colibri.load(ram="1GB") as demo:
        assert demo.info.vocab_size == 2560
        assert demo.generate("What is 6 * 7?", temperature=0).text == "6 * 7 = 42"
