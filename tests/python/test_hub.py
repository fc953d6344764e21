"""The hub: listing, fetching, and every way in which that fails, against a server on this computer."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path

import pytest
from colibri import hub as colibri_hub
from colibri.errors import ColibriError, DownloadError, StorageError
from colibri.hub import Hub, describe
from colibri.hub_files import RemoteFile, Repository
from colibri.hub_places import CachePlace, FolderPlace, cached_snapshot

COMMAND = "colibri pull some/model"


@pytest.fixture
def content(tmp_path: Path) -> Path:
    folder = tmp_path / "content"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "glm_moe_dsa"}')
    (folder / "weights.safetensors").write_bytes(os.urandom(1_000_000))
    (folder / "empty.json").write_bytes(b"")
    return folder


@pytest.fixture
def remote(hub, content: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A hub with one repository, asked without waiting between tries."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1)
    monkeypatch.setattr(colibri_hub, "CALL_WAITS", (0.01, 0.01))
    monkeypatch.setattr(colibri_hub, "FETCH_WAITS", (0.01, 0.01))
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    hub.add("some/model", content)
    return Hub("some/model", COMMAND)


def weights(remote: Hub) -> tuple[Repository, RemoteFile]:
    repository = remote.repository()
    file = repository.find("weights.safetensors")
    assert file is not None
    return repository, file


def fetched(remote: Hub, target: Path) -> bytes:
    repository, file = weights(remote)
    remote.fetch(repository, file, target, lambda _: None)
    return target.read_bytes()


def test_a_repository_is_listed_with_sizes_and_digests(hub, remote: Hub, content: Path) -> None:
    repository = remote.repository()
    assert repository.commit == hub.repos["some/model"].commit
    assert [(file.name, file.size) for file in repository.files] == [
        (name, (content / name).stat().st_size)
        for name in ("config.json", "empty.json", "weights.safetensors")
    ]
    file = repository.find("weights.safetensors")
    assert file is not None
    assert (len(file.etag), file.blob) == (64, None)
    assert hub.tokens == {"Bearer hf_test"}
    assert all(agent.startswith("colibri/") for agent in hub.agents)


def test_a_file_is_fetched_and_its_bytes_are_counted(hub, remote: Hub, content: Path, tmp_path: Path) -> None:
    repository, file = weights(remote)
    counts: list[int] = []
    remote.fetch(repository, file, tmp_path / "out", counts.append)
    assert (tmp_path / "out").read_bytes() == (content / file.name).read_bytes()
    assert sum(counts) == file.size == hub.sent[file.name]
    assert remote.read(repository, "config.json") == (content / "config.json").read_bytes()
    assert remote.read(repository, "empty.json") == b""
    assert remote.read(repository, "absent.json") is None


def test_a_cut_connection_is_taken_up_where_it_broke(
    hub, fault, remote: Hub, content: Path, tmp_path: Path
) -> None:
    hub.faults = [fault("cut", "weights.*", times=2, after=300_000)]
    assert fetched(remote, tmp_path / "out") == (content / "weights.safetensors").read_bytes()
    assert hub.sent["weights.safetensors"] == 1_000_000


def test_an_earlier_run_is_taken_up_and_only_the_rest_is_fetched(
    hub, remote: Hub, content: Path, tmp_path: Path
) -> None:
    whole = (content / "weights.safetensors").read_bytes()
    (tmp_path / "out").write_bytes(whole[:700_000])
    assert fetched(remote, tmp_path / "out") == whole
    assert hub.sent["weights.safetensors"] == 300_000
    assert fetched(remote, tmp_path / "out") == whole
    assert hub.sent["weights.safetensors"] == 300_000


@pytest.mark.parametrize("left", [b"x" * 400_000, b"x" * 1_000_000, b"x" * 1_000_001])
def test_what_an_earlier_run_left_is_not_trusted(
    hub, remote: Hub, content: Path, tmp_path: Path, left: bytes
) -> None:
    (tmp_path / "out").write_bytes(left)
    assert fetched(remote, tmp_path / "out") == (content / "weights.safetensors").read_bytes()


def test_a_server_without_ranges_is_asked_for_the_whole(
    hub, fault, remote: Hub, content: Path, tmp_path: Path
) -> None:
    hub.faults = [fault("cut", "weights.*", times=1, after=300_000), fault("no-range")]
    repository, file = weights(remote)
    counts: list[int] = []
    remote.fetch(repository, file, tmp_path / "out", counts.append)
    assert (tmp_path / "out").read_bytes() == (content / "weights.safetensors").read_bytes()
    assert sum(counts) == file.size


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_passing_fault_is_waited_for(hub, fault, remote: Hub, tmp_path: Path, status: int) -> None:
    hub.faults = [
        fault("list", times=2, status=status),
        fault("status", "weights.*", times=2, status=status),
    ]
    assert len(fetched(remote, tmp_path / "out")) == 1_000_000


FAILURES = {
    "always 500": ({"kind": "status", "status": 500}, "500"),
    "no access": ({"kind": "status", "status": 401}, "private"),
    "forbidden": ({"kind": "status", "status": 403}, "access"),
    "gated": ({"kind": "status", "status": 403, "headers": {"X_Error_Code": "GatedRepo"}}, "ask for access"),
    "gone": ({"kind": "status", "status": 404}, "404"),
    "corrupt": ({"kind": "corrupt"}, "digest"),
    "longer": ({"kind": "longer"}, "sends 1,000,001"),
    "shorter": ({"kind": "shorter"}, "sends 999,999"),
    "silent": ({"kind": "slow", "after": 0, "seconds": 1.6}, "silent"),
    "always cut": ({"kind": "cut", "after": 0}, "connection"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_lasting_fault_is_told_apart_and_names_the_command(
    hub, fault, remote: Hub, tmp_path: Path, name: str
) -> None:
    values, hint = FAILURES[name]
    hub.faults = [fault(match="weights.*", **values)]
    with pytest.raises(DownloadError) as caught:
        fetched(remote, tmp_path / "out")
    assert caught.value.exit_status == 6
    assert "weights.safetensors" in caught.value.message
    assert hint in f"{caught.value.why} {caught.value.fix}"
    if name not in ("corrupt", "longer", "shorter"):
        assert COMMAND in (caught.value.fix or "")


LISTING = {
    "no such repository": ("some/other", None, [], "there is no some/other"),
    "no such revision": ("some/model", "v9", [], "no such revision"),
    "gated": ("some/model", None, [{"status": 401, "headers": {"X_Error_Code": "GatedRepo"}}], "token"),
    "broken": ("some/model", None, [{"status": 500}], "500"),
}


@pytest.mark.parametrize("name", LISTING)
def test_a_repository_that_cannot_be_listed_says_why(hub, fault, remote: Hub, name: str) -> None:
    repo_id, revision, faults, hint = LISTING[name]
    hub.faults = [fault("list", **values) for values in faults]
    with pytest.raises(DownloadError) as caught:
        Hub(repo_id, COMMAND).repository(revision)
    assert hint in (caught.value.why or "")
    assert caught.value.fix


def test_a_hub_that_is_not_there_is_a_download_error(remote: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadError) as caught:
        remote.repository()
    assert "127.0.0.1:9" in (caught.value.why or "")


@pytest.mark.parametrize(
    "entry",
    [
        {"rfilename": "../x", "size": 1, "blobId": "0" * 40},
        {"rfilename": "/etc/x", "size": 1, "blobId": "0" * 40},
        {"rfilename": "a\\..\\x", "size": 1, "blobId": "0" * 40},
        {"rfilename": "x\x1b[2J", "size": 1, "blobId": "0" * 40},
        {"rfilename": "x", "size": -1, "blobId": "0" * 40},
        {"rfilename": "x", "size": 1, "blobId": "../../x"},
        {"rfilename": "x", "size": 1},
        {"rfilename": "x"},
    ],
)
def test_names_and_digests_of_the_hub_are_not_trusted(
    hub, remote: Hub, monkeypatch: pytest.MonkeyPatch, entry: dict[str, object]
) -> None:
    repo = hub.repos["some/model"]
    listing = {**repo.listing("some/model"), "siblings": [entry]}
    monkeypatch.setattr(repo, "listing", lambda _repo_id: listing)
    with pytest.raises(DownloadError):
        remote.repository()


def test_offline_asks_nobody(hub, remote: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    for one in (Hub("some/model", COMMAND, offline=True), remote):
        with pytest.raises(DownloadError) as caught:
            one.repository()
        assert "HF_HUB_OFFLINE" in (caught.value.why or "")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.asked == []


def test_a_full_disk_is_no_fault_of_the_network(
    remote: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_transfer: object, _piece: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(colibri_hub._Transfer, "_take", full)
    with pytest.raises(StorageError) as caught:
        fetched(remote, tmp_path / "out")
    assert (caught.value.code, caught.value.exit_status) == ("disk_full", 4)
    assert COMMAND in (caught.value.fix or "")


def test_a_file_on_its_way_belongs_to_one_process(remote: Hub, tmp_path: Path) -> None:
    import fcntl

    with open(tmp_path / "out", "wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(DownloadError) as caught:
            fetched(remote, tmp_path / "out")
    assert "another process" in caught.value.message


def test_a_stop_keeps_what_has_come(hub, fault, remote: Hub, tmp_path: Path) -> None:
    hub.faults = [fault("slow", "weights.*", times=1, after=500_000, seconds=0.2)]
    repository, file = weights(remote)
    stop = threading.Event()
    one = Hub("some/model", COMMAND, stop=stop)
    with pytest.raises(ColibriError) as caught:
        one.fetch(repository, file, tmp_path / "out", lambda _: stop.set())
    assert caught.value.code == "cancelled"
    assert COMMAND in (caught.value.fix or "")
    assert 0 < (tmp_path / "out").stat().st_size < file.size


def test_a_model_that_is_not_here_is_described_by_its_small_files(hub, remote: Hub, content: Path) -> None:
    (content / "model.safetensors.index.json").write_text('{"weight_map": {"a": "weights.safetensors"}}')
    hub.add("some/model", content)
    model = describe("some/model")
    assert model.config["model_type"] == "glm_moe_dsa"
    assert model.index == {"weight_map": {"a": "weights.safetensors"}}
    assert model.manifest is None
    assert ("weights.safetensors", 1_000_000) in model.files
    assert "weights.safetensors" not in hub.sent
    (content / "config.json").write_text("[]")
    hub.add("some/model", content)
    with pytest.raises(ColibriError) as caught:
        describe("some/model")
    assert caught.value.code == "model_corrupt"
    (content / "config.json").unlink()
    hub.add("some/model", content)
    with pytest.raises(ColibriError) as caught:
        describe("some/model")
    assert caught.value.code == "model_not_found"


def test_the_cache_is_the_one_of_the_library(remote: Hub, content: Path, tmp_path: Path) -> None:
    from huggingface_hub import try_to_load_from_cache

    repository, file = weights(remote)
    place = CachePlace(tmp_path / "hub", repository)
    assert not place.has(file)
    partial = place.partial(file)
    partial.parent.mkdir(parents=True)
    remote.fetch(repository, file, partial, lambda _: None)
    assert not place.has(file)
    place.accept(file)
    assert place.has(file)
    assert cached_snapshot(tmp_path / "hub", "some/model") == place.folder
    assert cached_snapshot(tmp_path / "hub", "some/model", "main") is None
    place.finish()
    assert cached_snapshot(tmp_path / "hub", "some/model", "main") == place.folder
    assert cached_snapshot(tmp_path / "hub", "some/model", repository.commit) == place.folder
    found = try_to_load_from_cache("some/model", file.name, cache_dir=tmp_path / "hub")
    assert isinstance(found, str)
    assert Path(found).read_bytes() == (content / file.name).read_bytes()
    assert Path(found).is_symlink()


def test_a_folder_knows_what_its_files_are(remote: Hub, content: Path, tmp_path: Path) -> None:
    repository, file = weights(remote)
    folder, stop = tmp_path / "folder", threading.Event()
    place = FolderPlace(folder, repository)
    folder.mkdir()
    (folder / file.name).write_bytes((content / file.name).read_bytes())
    assert place.has(file)
    assert place.adopt(file, stop)
    record = json.loads((folder / ".colibri-pull.json").read_text())
    assert (record["repository"], record["files"]) == ("some/model", {file.name: file.etag})
    (folder / ".colibri-pull.json").unlink()
    (folder / file.name).write_bytes(b"x" * file.size)
    assert not FolderPlace(folder, repository).adopt(file, stop)
    (folder / ".colibri-pull.json").write_text(json.dumps({**record, "repository": "some/other"}))
    with pytest.raises(StorageError) as caught:
        FolderPlace(folder, repository)
    assert "some/other" in (caught.value.why or "")
