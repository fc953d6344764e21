"""`colibri pull` and `--pull` against a hub on the loopback interface."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ORACLE = Path(__file__).resolve().parents[1] / "oracle"
DATA = Path(__file__).resolve().parents[1] / "data"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def model(folder: Path) -> Path:
    """A whole model in two shards, with what a repository holds besides."""
    shutil.copytree(ORACLE / "glm_sparse", folder, ignore=shutil.ignore_patterns("ref"))
    (folder / "generation_config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (folder / "LICENSE").write_text("free")
    (folder / "pytorch_model.bin").write_bytes(b"x" * 1000)
    (folder / "model.gguf").write_bytes(b"x" * 1000)
    (folder / "consolidated.safetensors").write_bytes(b"x" * 1000)
    (folder / "original").mkdir()
    (folder / "original" / "params.json").write_text("{}")
    return folder


@pytest.fixture
def online(cli, hub, tmp_path: Path):
    """The program with a hub that has some/model."""
    cli.environment.update(HF_ENDPOINT=hub.url, HF_HUB_DOWNLOAD_TIMEOUT="5", NO_PROXY="127.0.0.1")
    hub.add("some/model", model(tmp_path / "content"))
    return cli


def pulled(cli, *arguments: str) -> dict:
    done = cli("pull", "some/model", *arguments, "--json")
    assert done.code == 0, done.err
    value: dict = json.loads(done.out)
    assert value["version"] == 1
    return value


def test_a_model_is_pulled_into_the_cache_and_answers(online, hub) -> None:
    done = online("pull", "some/model")
    assert done.code == 0, done.err
    assert "colibri chat -m some/model" in done.err
    assert hub.repos["some/model"].commit[:12] in done.out
    assert hub.total() == sum(
        size for name, size in hub.sent.items() if not name.endswith((".bin", ".gguf", "params.json"))
    )
    assert {"LICENSE", "config.json", "chat_template.jinja", *SHARDS} <= hub.sent.keys()
    assert not {"pytorch_model.bin", "consolidated.safetensors", "original/params.json"} & hub.sent.keys()
    assert online("inspect", "some/model").code == 0
    hub.forget()
    again = pulled(online)
    assert (again["fetched_bytes"], hub.total()) == (0, 0)
    assert Path(again["folder"]).name == again["commit"] == hub.repos["some/model"].commit


@pytest.mark.parametrize("text", ["https://huggingface.co/some/model/tree/main ", "hf.co/some/model"])
def test_the_address_of_its_page_names_a_model(online, hub, text: str) -> None:
    done = online("pull", text)
    assert done.code == 0, done.err
    assert "some/model at" in done.out


@pytest.mark.parametrize("text", ["", "model", "a/b/c", "https://example.com/a/b", "../a/b", "a/b\n/c"])
def test_what_names_no_repository_is_answered_with_the_form(online, hub, text: str) -> None:
    done = online("pull", text)
    assert (done.code, done.slug()) == (2, "invalid_value")
    assert "OWNER/NAME" in done.err
    assert hub.asked == []


def test_a_dry_run_names_files_and_writes_nothing(online, hub) -> None:
    before = sorted(online.home.rglob("*"))
    value = pulled(online, "--dry-run")
    assert value["dry_run"] is True
    assert value["fetched_bytes"] == value["bytes"] == sum(file["bytes"] for file in value["files"])
    assert value["free_bytes"] > 0
    assert hub.total() == 0
    assert sorted(online.home.rglob("*")) == before
    assert SHARDS[0] in online("pull", "some/model", "--dry-run").out


def test_a_cut_connection_costs_no_byte_twice(online, hub, fault) -> None:
    hub.faults = [fault("cut", "model-.*", times=3, after=100_000), fault("status", "config.json", times=2)]
    value = pulled(online)
    assert hub.total() == value["bytes"] == value["fetched_bytes"]


def test_a_killed_pull_goes_on_where_it_was(online, hub, fault) -> None:
    hub.faults = [fault("slow", SHARDS[1], times=1, after=200_000, seconds=60)]
    process = online.start("pull", "some/model")
    partial = waited_for(lambda: [
        path for path in (online.home / ".cache").rglob("*.incomplete") if path.stat().st_size >= 200_000
    ])  # fmt: skip
    process.kill()
    online.end(process)
    kept = partial[0].stat().st_size
    first = hub.total()
    value = pulled(online)
    # What the killed run had received is known to the byte only by what it left.
    assert value["fetched_bytes"] <= value["bytes"] - kept
    assert hub.total() - first == value["fetched_bytes"]
    assert list((online.home / ".cache").rglob("*.incomplete")) == []


def test_ctrl_c_keeps_what_has_come_and_prints_the_command(online, hub, fault) -> None:
    hub.faults = [fault("slow", SHARDS[1], times=1, after=200_000, seconds=60)]
    process = online.start("pull", "some/model", "--local-dir", "my model")
    waited_for(lambda: [
        path for path in online.home.rglob(f"{SHARDS[1]}*.incomplete") if path.stat().st_size >= 200_000
    ])  # fmt: skip
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    done = online.end(process)
    assert done.code == 130
    assert time.monotonic() - began < 30
    assert "colibri pull some/model --local-dir 'my model'" in done.err
    assert "Traceback" not in done.err
    hub.forget()
    value = pulled(online, "--local-dir", "my model")
    assert hub.sent[SHARDS[1]] <= (ORACLE / "glm_sparse" / SHARDS[1]).stat().st_size - 200_000
    assert value["fetched_bytes"] == hub.total()


def waited_for(look: Callable[[], list]) -> list:
    limit = time.monotonic() + 60
    while not (found := look()):
        assert time.monotonic() < limit
        time.sleep(0.02)
    return found


def test_a_folder_is_filled_once(online, hub) -> None:
    value = pulled(online, "--local-dir", "here")
    folder = online.home / "here"
    assert value["folder"] == "here"
    assert not (online.home / ".cache" / "huggingface").exists()
    assert (folder / SHARDS[0]).read_bytes() == (ORACLE / "glm_sparse" / SHARDS[0]).read_bytes()
    assert not list(folder.rglob("*.incomplete"))
    assert online("plan", "-m", "here").code == 0
    hub.forget()
    (folder / SHARDS[0]).unlink()
    assert pulled(online, "--local-dir", "here")["fetched_bytes"] == hub.total() == hub.sent[SHARDS[0]]
    # Files that another program put there are read instead of fetched.
    (folder / ".colibri-pull.json").unlink()
    hub.forget()
    assert pulled(online, "--local-dir", "here")["fetched_bytes"] == hub.total() == 0


def test_a_new_commit_brings_only_what_changed(online, hub, tmp_path: Path) -> None:
    pulled(online, "--local-dir", "here")
    pulled(online)
    (tmp_path / "content" / "generation_config.json").write_text('{"temperature": 0.5}')
    old = hub.repos["some/model"].commit
    hub.repos["some/model"].read()
    assert hub.repos["some/model"].commit != old
    for target in ((), ("--local-dir", "here")):
        hub.forget()
        pulled(online, *target)
        assert hub.sent.keys() == {"generation_config.json"}
    assert "0.5" in (online.home / "here" / "generation_config.json").read_text()
    hub.forget()
    value = pulled(online, "--offline", "--revision", "main")
    assert value["commit"] == hub.repos["some/model"].commit


def test_offline_takes_what_is_here_and_asks_nobody(online, hub) -> None:
    done = online("pull", "some/model", "--offline")
    assert (done.code, done.slug()) == (6, "download_failed")
    assert "colibri pull some/model" in done.err
    assert hub.asked == []
    value = pulled(online)
    hub.forget()
    for offline in (pulled(online, "--offline"), pulled_with(online, HF_HUB_OFFLINE="1")):
        assert (offline["folder"], offline["fetched_bytes"]) == (value["folder"], 0)
    assert hub.asked == []
    done = online("pull", "some/model", "--offline", "--revision", "v2")
    assert (done.code, done.slug()) == (6, "download_failed")


def pulled_with(cli, **variables: str) -> dict:
    done = cli("pull", "some/model", "--json", **variables)
    assert done.code == 0, done.err
    value: dict = json.loads(done.out)
    return value


def test_an_incomplete_model_is_named_offline_and_repaired_online(online, hub) -> None:
    folder = Path(pulled(online)["folder"])
    blob = (folder / SHARDS[1]).resolve()
    (folder / SHARDS[1]).unlink()
    blob.unlink()
    done = online("pull", "some/model", "--offline")
    assert (done.code, done.slug()) == (3, "model_incomplete")
    assert SHARDS[1] in done.err
    assert "colibri pull some/model" in done.err
    hub.forget()
    assert pulled(online)["fetched_bytes"] == hub.sent[SHARDS[1]]


def test_a_repository_that_lacks_a_shard_is_no_whole_model(online, hub, tmp_path: Path) -> None:
    (tmp_path / "content" / SHARDS[1]).unlink()
    hub.repos["some/model"].read()
    done = online("pull", "some/model")
    assert (done.code, done.slug()) == (3, "model_incomplete")
    assert SHARDS[1] in done.err


def test_space_is_looked_at_before_anything_is_fetched(online, hub, monkeypatch: pytest.MonkeyPatch) -> None:
    real = hub.repos["some/model"].listing

    def huge(repo_id: str) -> dict:
        value = real(repo_id)
        for sibling in value["siblings"]:
            if sibling["rfilename"] == SHARDS[0]:
                sibling["size"] = sibling["lfs"]["size"] = 10**17
        return value

    monkeypatch.setattr(hub.repos["some/model"], "listing", huge)
    done = online("pull", "some/model")
    assert (done.code, done.slug()) == (4, "disk_full")
    assert "100000.00 TB" in done.err
    assert "free" in done.err
    assert hub.total() == 0


def test_patterns_choose_files(online, hub) -> None:
    value = pulled(online, "--include", "*.json", "--exclude", "gen*")
    assert sorted(file["file"] for file in value["files"]) == [
        "config.json", "model.safetensors.index.json", "original/params.json",
    ]  # fmt: skip
    assert any(SHARDS[1] in note for note in value["notes"])
    done = online("pull", "some/model", "--include", "*.onnx")
    assert (done.code, done.slug()) == (2, "invalid_value")


def test_a_folder_of_another_model_is_left_alone(online, hub, tmp_path: Path) -> None:
    pulled(online, "--local-dir", "here")
    hub.add("some/other", tmp_path / "content")
    done = online("pull", "some/other", "--local-dir", "here")
    assert (done.code, done.slug()) == (4, "output_not_writable")
    assert "some/model" in done.err


def test_a_place_that_cannot_be_written_is_named(online, hub) -> None:
    (online.home / "file").write_text("in the way")
    done = online("pull", "some/model", "--local-dir", "file/below")
    assert (done.code, done.slug()) == (4, "output_not_writable")
    assert hub.total() == 0


def test_access_and_names_are_told_apart(online, hub, fault) -> None:
    done = online("pull", "no/model")
    assert (done.code, done.slug()) == (6, "download_failed")
    assert "there is no no/model" in done.err
    done = online("pull", "some/model", "--revision", "v9")
    assert "no such revision" in done.err
    hub.faults = [fault("status", "model-.*", status=403, headers={"X_Error_Code": "GatedRepo"})]
    done = online("pull", "some/model")
    assert (done.code, done.slug()) == (6, "download_failed")
    assert "hf auth login" in done.err


def test_nothing_of_the_library_reaches_the_streams(online, hub, fault) -> None:
    hub.faults = [fault("list", times=1, status=500), fault("cut", "model-.*", times=2, after=1000)]
    done = online("pull", "some/model", "-q", "--json")
    assert (done.code, done.err) == (0, "")
    assert len(done.out.splitlines()) == 1


def test_progress_is_one_phase_over_all_bytes(online, hub) -> None:
    done = online("pull", "some/model", "--progress", "json", "-v", "--json")
    events = [json.loads(line) for line in done.err.splitlines() if line.startswith('{"phase"')]
    assert {event["phase"] for event in events} == {"download"}
    value = json.loads(done.out)
    assert events[-1]["done"] == events[-1]["total"] == value["bytes"]
    assert [event["done"] for event in events] == sorted(event["done"] for event in events)


def test_pull_is_a_setting_of_chat_and_generate(online, hub) -> None:
    hub.add("some/tiny", ORACLE / "glm_tiny")
    arguments = ("generate", "-m", "some/tiny", "--raw", "hi", "-n", "2", "-q")
    done = online(*arguments)
    assert (done.code, done.slug()) == (3, "model_not_found")
    assert "colibri pull some/tiny" in done.err
    assert "--pull" in done.err
    assert hub.asked == []
    assert online(*arguments, "--pull").code == 0
    assert hub.total(".safetensors") > 0
    hub.forget()
    assert online(*arguments, COLIBRI_PULL="yes").code == 0
    assert hub.asked == []
    refused = online("generate", "-m", "some/absent", "--pull", "--raw", "hi")
    assert (refused.code, refused.slug()) == (6, "download_failed")
    offline = online("generate", "-m", "some/absent", "--pull", "--offline", "--raw", "hi")
    assert (offline.code, offline.slug()) == (6, "download_failed")


def test_the_python_api_pulls_and_stops(hub, fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import colibri
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1)
    hub.add("some/model", model(tmp_path / "content"))
    target = tmp_path / "target"
    cancel = colibri.CancelToken()
    cancel.cancel()
    with pytest.raises(colibri.Cancelled):
        colibri.pull("some/model", local_dir=target, cancel=cancel)
    hub.faults = [fault("slow", SHARDS[1], times=1, after=1000, seconds=60)]
    with pytest.raises(colibri.Cancelled):
        colibri.pull("some/model", local_dir=target, on_progress=lambda _phase, done, _total: done < 1000)
    # A transfer from a silent server ends, and lets go of its file, when its time is up.
    waited_for(lambda: [] if any(one.name == "colibri-hub" for one in threading.enumerate()) else [True])
    # A request to stop counts even when the last byte has come.
    with pytest.raises(colibri.Cancelled):
        colibri.pull("some/model", local_dir=target, on_progress=lambda _phase, done, total: done < total)
    seen: list[tuple[str, int, int]] = []
    result = colibri.pull("some/model", local_dir=target, on_progress=lambda *event: seen.append(event))
    assert result.folder == str(target)
    assert seen[-1][1] == seen[-1][2]
    assert result.to_dict()["files"][0].keys() == {"file", "bytes"}
    assert colibri.inspect(result.folder)["model"]["layers"] > 0
    for wrong in ({"include": "*.json"}, {"local_dir": 3}):
        with pytest.raises(colibri.InvalidValue):
            colibri.pull("some/model", **wrong)
    assert os.environ.get("HF_HUB_DISABLE_TELEMETRY") is None
