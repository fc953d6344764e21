"""Which folder a model name means."""

from __future__ import annotations

from pathlib import Path

import pytest
from colibri.config import ConfigFile, Environment
from colibri.errors import ColibriError, InvalidValue, ModelNotFound
from colibri.locate import locate, repository_of


def found(text: str, tmp_path: Path, **parts: object) -> tuple[str, str, str]:
    file = ConfigFile(tmp_path / "config.toml", **parts)  # type: ignore[arg-type]
    result = locate(text, file, Environment({"HF_HUB_CACHE": str(tmp_path / "hub"), "HOME": str(tmp_path)}))
    return result.name, result.path, result.origin


def cache(tmp_path: Path, owner: str, name: str, revision: str = "0123456789abcdef") -> Path:
    root = tmp_path / "hub" / f"models--{owner}--{name}"
    snapshot = root / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (root / "refs").mkdir(exist_ok=True)
    (root / "refs" / "main").write_text(revision)
    return snapshot


def test_order_folder_alias_models_dir_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    models = tmp_path / "models"
    (models / "m").mkdir(parents=True)
    alias = {"m": {"path": tmp_path / "elsewhere"}}
    assert found("m", tmp_path, models=alias, models_dir=(models,)) == (
        "m",
        str(tmp_path / "elsewhere"),
        "alias",
    )
    assert found("m", tmp_path, models_dir=(models,)) == ("m", str(models / "m"), "models_dir")
    (tmp_path / "m").mkdir()
    assert found("m", tmp_path, models=alias, models_dir=(models,)) == ("m", "m", "folder")
    snapshot = cache(tmp_path, "owner", "name")
    assert found("owner/name", tmp_path) == ("owner/name", str(snapshot), "cache")
    assert found("demo", tmp_path)[1:] == ("demo", "demo")


@pytest.mark.parametrize(
    "address",
    [
        "https://huggingface.co/a/b ", "http://huggingface.co/a/b", "https://huggingface.co/a/b/tree/main",
        "huggingface.co/a/b", "https://hf.co/a/b?x=1",
    ],
)  # fmt: skip
def test_ux_07_a_web_address_of_a_model_is_understood(address: str, tmp_path: Path) -> None:
    """UX-07."""
    with pytest.raises(ModelNotFound) as caught:
        found(address, tmp_path)
    assert "a/b" in caught.value.message
    assert "colibri pull a/b" in (caught.value.fix or "")
    snapshot = cache(tmp_path, "a", "b")
    assert found(address, tmp_path) == ("a/b", str(snapshot), "cache")


@pytest.mark.parametrize(
    "text", ["", "  ", "a/b/c", "https://example.com/model", "https://huggingface.co/a", "a//b"]
)
def test_ux_07_what_cannot_name_a_model_is_answered_with_the_form(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """UX-07."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidValue) as caught:
        found(text, tmp_path)
    assert caught.value.exit_status == 2
    assert "OWNER/NAME" in (caught.value.why or "")


@pytest.mark.parametrize("text", ["nothing", "/nowhere/at/all", "./here/not", "owner/absent", "~/absent"])
def test_a_missing_model_is_named_with_what_to_do(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound) as caught:
        found(text, tmp_path)
    assert text in caught.value.message
    assert caught.value.why
    assert caught.value.fix


def test_a_misspelt_name_suggests_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound) as caught:
        found("glm-5.3", tmp_path, models={"glm-5.2": {"path": tmp_path}})
    assert "glm-5.2" in (caught.value.fix or "")


def test_a_file_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"x")
    with pytest.raises(ColibriError) as caught:
        found(str(weights), tmp_path)
    assert caught.value.code == "model_not_found"
    assert str(tmp_path) in (caught.value.fix or "")


def test_a_revision_chooses_among_the_snapshots(tmp_path: Path) -> None:
    first = cache(tmp_path, "owner", "name", "1" * 40)
    (first.parents[1] / "refs" / "v1").write_text("1" * 40)
    second = cache(tmp_path, "owner", "name", "2" * 40)
    file, environment = (
        ConfigFile(tmp_path / "config.toml"),
        Environment({"HF_HUB_CACHE": str(tmp_path / "hub")}),
    )
    for revision, wanted in ((None, second), ("v1", first), ("1" * 40, first), ("main", second)):
        assert locate("owner/name", file, environment, revision).path == str(wanted)
    with pytest.raises(ModelNotFound) as caught:
        locate("owner/name", file, environment, "v9")
    assert "colibri pull owner/name --revision v9" in (caught.value.fix or "")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a/b", ("a/b", None)), (" https://huggingface.co/a/b/tree/v1/x ", ("a/b", "v1")), ("a/b/c", None),
        ("https://example.com/a/b", None), ("../a", None), ("", None),
    ],
)  # fmt: skip
def test_what_names_a_repository(text: str, wanted: tuple[str, str | None] | None) -> None:
    assert repository_of(text) == wanted


@pytest.mark.parametrize("name", ["out/b2", "out/b2.partial", "b2", "./b2"])
def test_an_unfinished_conversion_is_named_with_the_command_that_goes_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    target = name.removesuffix(".partial")
    partial = tmp_path / f"{target}.partial"
    partial.mkdir(parents=True)
    (partial / ".colibri-convert.json").write_text('{"shards": []}')
    with pytest.raises(ColibriError) as caught:
        found(name, tmp_path)
    assert caught.value.code == "model_incomplete"
    assert f"colibri convert SRC {Path(target)}" in (caught.value.fix or "")
    (partial / "source").mkdir()
    (partial / "source" / ".colibri-pull.json").write_text('{"repository": "a/b"}')
    with pytest.raises(ColibriError) as caught:
        found(name, tmp_path)
    assert f"colibri convert a/b {Path(target)}" in (caught.value.fix or "")
    (partial / ".colibri-convert.json").unlink()
    if name != target:
        assert found(name, tmp_path)[2] == "folder"
    else:
        with pytest.raises(ModelNotFound):
            found(name, tmp_path)


def test_where_a_repository_is_in_the_cache_its_conversion_is_not_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    snapshot = cache(tmp_path, "owner", "name")
    (tmp_path / "owner" / "name.partial").mkdir(parents=True)
    (tmp_path / "owner" / "name.partial" / ".colibri-convert.json").write_text("{}")
    assert found("owner/name", tmp_path) == ("owner/name", str(snapshot), "cache")
