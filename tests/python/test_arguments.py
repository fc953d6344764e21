"""What callers of the Python API pass: a wrong argument is an error that names it, and none is ignored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import colibri
import pytest

PROMPT = "Write a story about a fox."
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8}


@pytest.mark.parametrize(
    "options",
    [
        {"stop": 3}, {"stop": ["a", 3]}, {"stop": [""]}, {"stop": b"a"}, {"timeout": "5s"}, {"timeout": 0},
        {"timeout": True}, {"timeout": float("nan")}, {"cancel": 3}, {"logits_processors": 3},
        {"logits_processors": [3]}, {"on_progress": 3}, {"wait": "no"}, {"think": "yes"},
        {"reasoning_effort": "enormous"}, {"reasoning_effort": 3}, {"reasoning_effort": []},
        {"params": {"temperature": 0}}, {"params": 0.7}, {"temperature": "hot"}, {"max_tokens": 2.5},
        {"seed": -1}, {"system": 3},
    ],
)  # fmt: skip
def test_a_wrong_option_of_a_generation_is_named(model: colibri.Model, options: dict[str, Any]) -> None:
    (name,) = options
    uses: list[Callable[..., Any]] = [model.generate, model.stream]
    if name != "system":
        uses += [model.session().chat, model.session().stream]
    for use in uses:
        with pytest.raises(colibri.InvalidValue, match=name) as caught:
            use(PROMPT, **options)
        assert "must be" in (caught.value.why or "")
    assert model.generate(PROMPT, **GREEDY).token_ids


@pytest.mark.parametrize(
    "options",
    [
        {"ram": []}, {"ram": -1}, {"ram": True}, {"ram": 1.5}, {"ctx": 1.5}, {"ctx": -1}, {"ctx": None},
        {"threads": -1}, {"threads": "4"}, {"threads": 2**70}, {"io": 3}, {"numerics": None}, {"kernels": 3},
    ],
)  # fmt: skip
def test_a_wrong_option_of_loading_is_named(demo_hf: Path, options: dict[str, Any]) -> None:
    (name,) = options
    for use in (colibri.load, colibri.plan):
        with pytest.raises(colibri.InvalidValue, match=name):
            use(demo_hf, **options)


def test_wrong_paths_and_callbacks_are_named(demo_hf: Path, tmp_path: Path) -> None:
    for path in (3, None, ""):
        for use in (colibri.load, colibri.plan, colibri.inspect):
            with pytest.raises(colibri.InvalidValue, match="path"):
                use(path)  # type: ignore[arg-type]
        with pytest.raises(colibri.InvalidValue, match="source"):
            colibri.convert(path, tmp_path / "out")  # type: ignore[arg-type]
        with pytest.raises(colibri.InvalidValue, match="destination"):
            colibri.convert(demo_hf, path)  # type: ignore[arg-type]
    with pytest.raises(colibri.InvalidValue, match="on_progress"):
        colibri.load(demo_hf, on_progress=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [{"experts": 4}, {"keep_mtp": "no"}, {"dry_run": 1}, {"workers": "2"}, {"workers": 0}, {"cancel": 3},
     {"on_progress": 3}],
)  # fmt: skip
def test_a_wrong_option_of_a_conversion_is_named(
    demo_hf: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    (name,) = options
    with pytest.raises(colibri.InvalidValue, match=name):
        colibri.convert(demo_hf, tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_prompt_is_refused(model: colibri.Model) -> None:
    for prompt in ("", " \n"):
        for use in (
            lambda prompt=prompt: model.generate(prompt),
            lambda prompt=prompt: model.generate(prompt, raw=True),
            lambda prompt=prompt: model.session().chat(prompt),
        ):
            with pytest.raises(colibri.InvalidValue, match="prompt is empty"):
                use()


def test_a_wrong_system_message_of_a_session_is_named(model: colibri.Model) -> None:
    with pytest.raises(colibri.InvalidValue, match="system"):
        model.session(system=3)  # type: ignore[arg-type]
    session = model.session()
    with pytest.raises(colibri.InvalidValue, match="system"):
        session.system = 3  # type: ignore[assignment]


def test_a_wrong_token_is_named_by_its_place(model: colibri.Model) -> None:
    with pytest.raises(colibri.InvalidValue) as caught:
        model.generate(tokens=[5, 99999])
    assert caught.value.message == "tokens[1] is 99999"
    with pytest.raises(colibri.InvalidValue, match="from 1 to 2147483647"):
        colibri.SamplingParams(max_tokens=0)


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ({"role": "usr", "content": "hi"}, "did you mean 'user'?"),
        ({"role": "User", "content": "hi"}, "did you mean 'user'?"),
        ({"role": "bot", "content": "hi"}, "'assistant'"),
        ({"role": "user", "contents": "hi"}, "content"),
        ({"role": "user", "content": None}, "content"),
        ({"role": "assistant"}, "content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "content[0]"),
        ({"role": "user", "content": ["hi", 3]}, "content[1]"),
    ],
)
def test_a_message_that_the_template_would_drop_is_refused(
    model: colibri.Model, message: dict[str, Any], hint: str
) -> None:
    for use in (model.generate, model.create_chat_completion):
        with pytest.raises(colibri.InvalidValue) as caught:
            use(messages=[{"role": "user", "content": "Hello"}, message])
        assert "messages[1]" in caught.value.message
        assert hint in str(caught.value)


def test_roles_that_the_template_names_are_accepted(model: colibri.Model) -> None:
    for role in ("system", "developer", "tool", "assistant"):
        messages = [{"role": role, "content": "Be brief."}, {"role": "user", "content": PROMPT}]
        assert model.generate(messages=messages, **GREEDY).stats.prompt_tokens > 10


def test_an_effort_implies_reasoning_unless_it_is_refused(model: colibri.Model) -> None:
    def thinks(**options: Any) -> bool:
        stream = model.stream(PROMPT, max_tokens=2, temperature=0, **options)
        with stream:
            return any(chunk.kind == "reasoning" for chunk in stream)

    assert not thinks()
    assert not thinks(reasoning_effort="high", think=False)
    assert thinks(think=True)
    assert thinks(reasoning_effort="high")
    assert thinks(reasoning_effort="low", think=None)


def test_the_result_says_which_limit_was_met(demo_hf: Path) -> None:
    with colibri.load(demo_hf, ram="1GB", ctx=64) as short:
        by_tokens = short.generate(PROMPT, temperature=0, max_tokens=3)
        full = short.generate(PROMPT, temperature=0)
        ended = short.generate("What is 6 * 7?", temperature=0)
    assert (by_tokens.finish_reason, by_tokens.limit) == ("length", "max_tokens")
    assert (full.finish_reason, full.limit) == ("length", "context")
    assert (ended.finish_reason, ended.limit) == ("stop", None)


def test_the_model_of_a_completion_is_repeated(model: colibri.Model) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    assert model.create_chat_completion(messages, model="gpt", **GREEDY)["model"] == "gpt"
    assert model.create_chat_completion(messages, **GREEDY)["model"] == model.info.name
    chunks = list(model.create_chat_completion(messages, model="gpt", stream=True, **GREEDY))
    assert {chunk["model"] for chunk in chunks} == {"gpt"}
    with pytest.raises(colibri.InvalidValue, match="model"):
        model.create_chat_completion(messages, model=3)  # type: ignore[call-overload]


def test_the_embedded_model_has_one_name_everywhere(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    named = colibri.plan("demo", ram="1GB")
    assert colibri.plan(ram="1GB").model == named.model
    assert colibri.inspect() == colibri.inspect("demo")
    # Plans and inspections give facts the same names.
    assert colibri.inspect("demo")["model"] == named.model.to_dict()
    with pytest.raises(colibri.ModelError, match="container already"):
        colibri.convert("demo", tmp_path / "out")


def test_a_model_of_the_hugging_face_cache_has_the_name_of_its_repository(
    demo_hf: Path, tmp_path: Path
) -> None:
    snapshot = tmp_path / "models--some--model" / "snapshots" / "0123abcd"
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(demo_hf)
    assert colibri.plan(snapshot, ram="1GB").model.name == "some/model"
    assert colibri.inspect(snapshot)["model"]["name"] == "some/model"


def test_errors_name_the_keywords_of_python(demo_hf: Path) -> None:
    with pytest.raises(colibri.ResourceError) as small:
        colibri.load(demo_hf, ram="3MB")
    with pytest.raises(colibri.ContextError) as long, colibri.load(demo_hf, ram="1GB", ctx=64) as short:
        short.generate(tokens=[300] * 65)
    with pytest.raises(colibri.InvalidValue) as huge:
        colibri.load(demo_hf, ctx=100_000)
    for caught in (small, long, huge):
        assert "--" not in str(caught.value).replace("--dense", "")
    assert 'ram="' in str(small.value)
    assert "ctx=65" in str(long.value)
    # What is wrong is said once.
    assert (huge.value.why or "").removeprefix("expected ") not in (huge.value.fix or "")


def test_more_threads_than_cores_are_remarked(demo_hf: Path) -> None:
    notes = colibri.plan(demo_hf, ram="1GB", threads=1000).notes
    assert any("1000 threads" in note for note in notes)
    assert not any("threads" in note for note in colibri.plan(demo_hf, ram="1GB", threads=1).notes)


def test_only_public_names_are_listed() -> None:
    assert dir(colibri) == sorted(colibri.__all__)
