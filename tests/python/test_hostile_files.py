"""Files of a model folder that nobody should trust: devices, pipes, foreign settings, endless expressions."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import colibri
import pytest
from colibri.config import ConfigFile, Environment
from colibri.errors import ColibriError
from colibri.files import TooLarge, read_file
from colibri.sampling import ModelDefaults
from colibri.template import ChatTemplate
from colibri.tokenizer import Tokenizer

READERS: dict[str, Callable[[Path], object]] = {
    "tokenizer.json": lambda folder: Tokenizer.read(folder / "tokenizer.json"),
    "tokenizer_config.json": ChatTemplate.read,
    "chat_template.jinja": ChatTemplate.read,
    "generation_config.json": ModelDefaults.read,
    "config.json": ModelDefaults.read,
}
PLACES: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, name: str, place: str) -> None:
    PLACES[place](tmp_path / name)
    with pytest.raises(colibri.ModelError) as caught:
        READERS[name](tmp_path)
    assert name in caught.value.message
    assert "not a file" in (caught.value.why or "")


@pytest.mark.parametrize("name", READERS)
def test_a_file_that_is_too_large_is_refused_unread(tmp_path: Path, name: str) -> None:
    with (tmp_path / name).open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(colibri.ModelError, match="has more than"):
        READERS[name](tmp_path)


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"12345")
    assert read_file(path, 5) == b"12345"
    with pytest.raises(TooLarge):
        read_file(path, 4)
    with pytest.raises(FileNotFoundError):
        read_file(Path("a\0b"), 4)
    assert read_file(Path("/proc/self/stat"), 1 << 16)


@pytest.mark.parametrize("place", PLACES)
def test_the_configuration_file_must_be_a_file(tmp_path: Path, place: str) -> None:
    path = tmp_path / "colibri" / "config.toml"
    path.parent.mkdir()
    PLACES[place](path)
    read = ConfigFile.read(Environment({"XDG_CONFIG_HOME": str(tmp_path)}))
    (fault,) = read.faults.values()
    assert "not a file" in (fault.why or "")


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 100_000,
        "seed = " + "9" * 5000,
        "seed = 0x" + "f" * 5000,
        "temp = 0x" + "f" * 5000,
        "timeout = 0x" + "f" * 5000,
        "timeout = 1e308",
        "models_dir = [5]",
        'models_dir = ["a\\u0000"]',
        "models = [5]",
        "[models.m]\npath = 5",
        'stop = ["", 5]',
        "ctx = [[1]]",
    ],
)
def test_strange_values_of_the_configuration_file_are_faults_of_that_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "colibri" / "config.toml"
    path.parent.mkdir()
    path.write_text(text)
    read = ConfigFile.read(Environment({"XDG_CONFIG_HOME": str(tmp_path)}))
    assert read.faults
    for fault in read.faults.values():
        assert fault.code == "invalid_value"
        assert "config.toml" in fault.message
        assert len(str(fault)) < 1000


def test_a_home_that_does_not_exist_is_no_reason_to_fail(tmp_path: Path) -> None:
    path = tmp_path / "colibri" / "config.toml"
    path.parent.mkdir()
    path.write_text('\ufeffmodels_dir = ["~nobody-of-this-name/x"]\n', encoding="utf-8")
    read = ConfigFile.read(Environment({"XDG_CONFIG_HOME": str(tmp_path)}))
    assert not read.faults
    assert [str(folder) for folder in read.models_dir] == ["~nobody-of-this-name/x"]


TEXT = "The quick fox tells a story about seven friends and a river."


def changed(demo_hf: Path, folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    value = json.loads((demo_hf / "tokenizer.json").read_text())
    change(value)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(value))
    return path


def test_settings_of_training_in_the_tokenizer_are_without_effect(demo_hf: Path, tmp_path: Path) -> None:
    def change(value: dict[str, Any]) -> None:
        value["truncation"] = {
            "direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0,
        }  # fmt: skip
        value["padding"] = {
            "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "x",
        }  # fmt: skip
        value["model"]["dropout"] = 0.9

    plain = Tokenizer.read(demo_hf / "tokenizer.json")
    tokenizer = Tokenizer.read(changed(demo_hf, tmp_path, change))
    long = TEXT * 2000
    for text in (TEXT, "", long):
        assert tokenizer.encode(text) == plain.encode(text)


def splitting(pattern: str) -> Callable[[dict[str, Any]], None]:
    def change(value: dict[str, Any]) -> None:
        value["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": pattern}

    return change


def test_an_expression_that_never_ends_is_an_error_of_the_file(demo_hf: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.read(changed(demo_hf, tmp_path, splitting("(a+)+$")))
    for text in ("a" * 40 + "b", "c" * 70_000 + "a" * 40 + "b"):
        with pytest.raises(colibri.ModelError) as caught:
            tokenizer.encode(text)
        assert caught.value.code == "model_corrupt"
        assert "tokenizer.json" in caught.value.message


def test_a_long_text_is_encoded_as_a_short_one_is(demo_hf: Path) -> None:
    tokenizer = Tokenizer.read(demo_hf / "tokenizer.json")
    text = TEXT * 1500
    assert tokenizer.encode(text) == list(tokenizer._backend.encode(text, add_special_tokens=False).ids)


def test_the_wait_for_a_long_text_can_be_ended(demo_hf: Path) -> None:
    tokenizer = Tokenizer.read(demo_hf / "tokenizer.json")

    class Enough(Exception):
        pass

    def check() -> None:
        raise Enough

    with pytest.raises(Enough):
        tokenizer.encode("tell me a story " * 60_000, check=check)


@pytest.mark.parametrize(
    ("options", "code"), [({"timeout": 0.1}, "timeout"), ({"cancel": colibri.CancelToken()}, "cancelled")]
)
def test_a_prompt_that_takes_long_to_encode_can_be_stopped(
    model: colibri.Model, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], code: str
) -> None:
    monkeypatch.setattr(Tokenizer, "least_tokens", lambda _tokenizer, _text: 0)
    if "cancel" in options:
        threading.Timer(0.1, options["cancel"].cancel).start()
    for raw in (False, True):
        with pytest.raises(colibri.Cancelled) as caught:
            model.generate("tell me a story " * 60_000, raw=raw, **options)
        assert caught.value.code == code


def test_a_prompt_that_is_far_too_long_is_refused_without_encoding_it(
    model: colibri.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_arguments: object, **_options: object) -> list[int]:
        raise AssertionError

    monkeypatch.setattr(Tokenizer, "encode", never)
    monkeypatch.setattr(ChatTemplate, "render", never)
    text = "tell me a story " * 700_000
    began = time.process_time()
    uses: list[Callable[[], object]] = [
        lambda: model.generate(text),
        lambda: model.generate(text, raw=True),
        lambda: model.session().chat(text),
        lambda: model.generate(messages=[{"role": "user", "content": text}]),
    ]
    for use in uses:
        with pytest.raises(colibri.ContextError, match="at least"):
            use()
    assert time.process_time() - began < 60


@pytest.mark.parametrize(
    "text", [TEXT, "a" * 500, " " * 300, "é" * 100, "😀" * 50, "\u212a" * 90, "\n\t" * 80]
)
def test_the_least_number_of_tokens_is_never_too_high(demo_hf: Path, tmp_path: Path, text: str) -> None:
    def compose(value: dict[str, Any]) -> None:
        value["normalizer"] = {"type": "NFC"}

    def strip(value: dict[str, Any]) -> None:
        for token in value["added_tokens"]:
            token["lstrip"] = token["rstrip"] = True

    for change in (lambda value: None, compose, strip):
        tokenizer = Tokenizer.read(changed(demo_hf, tmp_path, change))
        text = f"<|user|>{text}<|assistant|>"
        assert 0 <= tokenizer.least_tokens(text) <= len(tokenizer.encode(text))


def test_where_text_may_vanish_nothing_is_said_about_its_length(demo_hf: Path, tmp_path: Path) -> None:
    def remove(value: dict[str, Any]) -> None:
        value["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"

    def lower(value: dict[str, Any]) -> None:
        value["normalizer"] = {"type": "Lowercase"}

    for change in (remove, lower):
        assert Tokenizer.read(changed(demo_hf, tmp_path, change)).least_tokens(TEXT * 1000) == 0
    assert Tokenizer.read(demo_hf / "tokenizer.json").least_tokens(TEXT * 1000) > 100


def test_a_byte_order_mark_is_no_part_of_a_template(demo_hf: Path, tmp_path: Path) -> None:
    for name in ("chat_template.jinja", "tokenizer_config.json", "generation_config.json", "config.json"):
        if (demo_hf / name).exists():
            (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + (demo_hf / name).read_bytes())
    messages = [{"role": "user", "content": "Hello"}]
    assert ChatTemplate.read(tmp_path).render(messages) == ChatTemplate.read(demo_hf).render(messages)
    assert ModelDefaults.read(tmp_path) == ModelDefaults.read(demo_hf)


def test_a_folder_of_pipes_does_not_hang_the_front_door(demo_hf: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
        folder = tmp_path / name
        shutil.copytree(demo_hf, folder)
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with pytest.raises(ColibriError, match=name), colibri.load(folder, ram="1GB", ctx=64) as opened:
            opened.generate("Hello", max_tokens=2)


def test_more_text_than_a_template_renders_is_a_prompt_too_long(demo_hf: Path) -> None:
    message = {"role": "user", "content": "word " * 4_000_000}
    with pytest.raises(colibri.ContextError):
        ChatTemplate.read(demo_hf).render([message])
