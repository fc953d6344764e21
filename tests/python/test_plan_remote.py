"""`colibri plan OWNER/NAME` of a model that is not here, against a hub on the loopback interface."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import colibri
import pytest

DATA = Path(__file__).resolve().parents[1] / "data"
ORACLE = Path(__file__).resolve().parents[1] / "oracle"
DEMO = Path(colibri.__file__).parent / "data" / "demo"

SIZES = ("resident_bytes", "kv_bytes", "experts_total", "expert_bytes_total")


def copied(source: Path, folder: Path) -> Path:
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("ref"))
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


@pytest.fixture
def online(cli, hub):
    cli.environment.update(HF_ENDPOINT=hub.url, HF_HUB_DOWNLOAD_TIMEOUT="5", NO_PROXY="127.0.0.1")
    hub.add("some/container", DEMO)
    hub.add("some/checkpoint", ORACLE / "glm_sparse")
    return cli


def planned(cli, *arguments: str) -> dict:
    done = cli("plan", *arguments, "--json")
    assert done.code == 0, done.err
    value: dict = json.loads(done.out)
    assert value["version"] == 1
    return value


@pytest.mark.parametrize("name", ["some/container", "https://huggingface.co/some/container/tree/main"])
def test_a_container_is_planned_like_the_same_one_here(online, hub, name: str) -> None:
    remote, here = planned(online, name), planned(online, "demo", "--no-measure")
    assert (remote["remote"], here["remote"]) == (True, False)
    assert {key: remote[key] for key in SIZES} == {key: here[key] for key in SIZES}
    assert remote["tiers"][-1] == here["tiers"][-1]
    assert remote["per_token"] == here["per_token"]
    assert remote["model"]["name"] == "some/container"
    assert remote["model"]["formats"]["experts"] == here["model"]["formats"]["experts"]
    assert remote["tokens_per_second"] is None
    assert remote["conversion"] is None
    assert hub.total(".safetensors") == 0
    assert {"config.json", "colibri.json"} <= hub.sent.keys()
    assert not (online.home / ".cache").exists()


def test_a_checkpoint_is_planned_as_the_container_it_becomes(online, hub) -> None:
    remote = planned(online, "some/checkpoint")
    done = online("convert", str(ORACLE / "glm_sparse"), "out", "--dry-run", "--json")
    bytes_written = json.loads(done.out)["bytes"]
    # Headers and the space between tensors, which the plan leaves out, count in a model as small as this.
    assert 0.8 * bytes_written < remote["conversion"]["container_bytes"] <= bytes_written
    assert hub.total(".safetensors") == 0
    shown = online("plan", "some/checkpoint").out
    assert "on the hub, not downloaded" in shown
    assert "convert    makes" in shown
    assert "speed unknown" in shown
    assert "fits: yes" in shown


def test_a_snapshot_without_weights_is_planned_from_the_hub(online, hub) -> None:
    root = online.home / "hub" / "models--some--container"
    snapshot = root / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("0" * 40)
    shutil.copy(DEMO / "config.json", snapshot)
    shutil.copy(DEMO / "colibri.json", snapshot)
    online.environment["HF_HUB_CACHE"] = str(online.home / "hub")
    assert planned(online, "some/container")["remote"]
    done = online("plan", "some/container", "--offline")
    assert done.code == 3
    assert "safetensors" in done.err


def test_offline_asks_nobody(online, hub) -> None:
    done = online("plan", "some/container", "--offline")
    assert (done.code, done.slug()) == (3, "model_not_found")
    assert hub.asked == []


def test_a_revision_that_is_not_there_is_named(online) -> None:
    done = online("plan", "some/container", "--revision", "nowhere")
    assert done.code in (3, 6)
    assert "nowhere" in done.err


def test_a_hub_that_does_not_answer_is_a_network_error(cli) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        done = cli("plan", "some/container", HF_ENDPOINT=address, NO_PROXY="127.0.0.1")
    assert (done.code, done.slug()) == (6, "download_failed")


FAULTS = {
    "another kind of model": ("config.json", '{"model_type": "unheard_of"}', "model_unsupported"),
    "no object": ("config.json", "[]", "model_corrupt"),
    "manifest of another kind": ("colibri.json", '{"format": "other"}', "model_"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_files_of_a_repository_are_named(online, hub, tmp_path: Path, fault: str) -> None:
    name, text, slug = FAULTS[fault]
    folder = copied(DEMO, tmp_path / "content")
    (folder / name).write_text(text)
    hub.add("some/faulty", folder)
    done = online("plan", "some/faulty")
    assert done.code == 3
    assert done.slug().startswith(slug)
    assert name in done.err or "unheard_of" in done.err


@pytest.mark.parametrize(
    "index", [{"weight_map": [1]}, {"weight_map": {"a": 1}, "metadata": {"total_size": -5}}, {"metadata": 7}]
)
def test_an_index_that_cannot_be_used_is_left_out(online, hub, tmp_path: Path, index: dict) -> None:
    folder = copied(ORACLE / "glm_sparse", tmp_path / "content")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    hub.add("some/odd", folder)
    done = online("plan", "some/odd", "--json")
    assert "Traceback" not in done.err
    assert done.code in (0, 3)
    value = json.loads(done.out)
    assert value.get("remote") or value["error"]["code"].startswith("model_")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"repository": "no repository"}, "repository"),
        ({"repository": 3}, "repository"),
        ({"repository": "some/model", "revision": ""}, "revision"),
        ({"repository": "some/model", "offline": "no"}, "offline"),
        ({"repository": "some/model", "ram": "much"}, "--ram"),
    ],
)
def test_arguments_are_checked_before_anybody_is_asked(arguments: dict, name: str) -> None:
    with pytest.raises(colibri.InvalidValue) as caught:
        colibri.plan_remote(**arguments)
    assert name in str(caught.value.args)


def test_weights_in_folders_of_a_repository_are_not_counted(online, hub, tmp_path: Path) -> None:
    folder = copied(ORACLE / "glm_tiny", tmp_path / "plain")
    hub.add("some/plain", folder)
    expected = planned(online, "some/plain")
    (folder / "more").mkdir()
    shutil.copy(folder / "model.safetensors", folder / "more" / "model.safetensors")
    hub.add("some/plain", folder)
    assert planned(online, "some/plain")["conversion"] == expected["conversion"]
