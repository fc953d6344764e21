"""`colibri convert --repack` of a public container on the hub, and of repositories without an index."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

ORACLE = Path(__file__).resolve().parents[1] / "oracle"
FILES = 7
NAME = "out-{:05}.safetensors"


def published(container: Path, folder: Path) -> Path:
    """The tensors of a container as public ones hold them: no index, manifest, stamps or padding."""
    from safetensors import safe_open
    from safetensors.numpy import save_file

    folder.mkdir()
    for path in container.glob("*.json*"):
        if path.name != "colibri.json":
            shutil.copy(path, folder / path.name)
    tensors = {}
    for path in sorted(container.glob("*.safetensors")):
        with safe_open(path, "numpy") as shard:
            names = [name for name in shard.keys() if not name.startswith("__pad__")]  # noqa: SIM118
            tensors.update({name: shard.get_tensor(name) for name in names})
    names = sorted(tensors, key=_in_order)
    each = -(-len(names) // FILES)
    for number, start in enumerate(range(0, len(names), each)):
        part = names[start : start + each]
        save_file({name: tensors[name] for name in part}, folder / NAME.format(number))
    return folder


def _in_order(name: str) -> tuple[int, int, str]:
    parts = name.split(".")
    layer = int(parts[2]) if parts[:2] == ["model", "layers"] else (-1 if "embed" in name else 1000)
    return layer, int(parts[5]) if "experts" in parts and parts[5].isdigit() else -1, name


def weight_bytes(folder: Path) -> list[int]:
    """Bytes on the disk of each weight file of the source, those on their way and headers included."""
    paths = list(folder.rglob("out-*.safetensors*")) if folder.is_dir() else []
    sizes = []
    for path in paths:
        try:
            facts = path.stat()
        except FileNotFoundError:
            continue
        sizes.append(min(facts.st_blocks * 512, facts.st_size))
    return sizes


def digests(folder: Path) -> dict[str, str]:
    manifest = json.loads((folder / "colibri.json").read_text())
    return {entry["file"]: entry["sha256"] for entry in manifest["shards"] + manifest["files"]}


def converted(cli, *arguments: str) -> dict:
    done = cli("convert", *arguments, "--json")
    assert done.code == 0, done.err
    value: dict = json.loads(done.out)
    return value


def write_index(folder: Path) -> None:
    """Writes the index that the weight files of a folder have."""
    from safetensors import safe_open

    weight_map = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "numpy") as shard:
            weight_map.update(dict.fromkeys(shard.keys(), path.name))
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.fixture
def online(cli, hub, tmp_path: Path):
    """The program with a hub that has some/container, and the same container in the folder `content`."""
    cli.environment.update(HF_ENDPOINT=hub.url, HF_HUB_DOWNLOAD_TIMEOUT="5", NO_PROXY="127.0.0.1")
    # One scale a row: of groups several sizes would fit matrices this small, and then none is taken.
    converted(cli, str(ORACLE / "glm_tiny"), "ours", "--experts", "q4row", "--dense", "q4row")
    hub.add("some/container", published(cli.home / "ours", tmp_path / "content"))
    return cli


@pytest.fixture
def expected(online, tmp_path: Path) -> dict[str, str]:
    """What the same container gives from a folder."""
    converted(online, str(tmp_path / "content"), "expected", "--repack")
    return digests(online.home / "expected")


def weight_files(hub) -> list[str]:
    return [name for name in hub.repos["some/container"].files if name.endswith(".safetensors")]


def test_headers_come_first_and_then_a_few_files_at_a_time(online, hub, expected: dict[str, str]) -> None:
    held: list[int] = []
    sizes = {name: path.stat().st_size for name, path in hub.repos["some/container"].files.items()}
    staging = online.home / "out.partial" / "source"
    # Headers alone take less than half of the smallest file.
    least = min(sizes[name] for name in weight_files(hub)) // 2
    hub.on_file = lambda _name: held.append(sum(size > least for size in weight_bytes(staging)))
    value = converted(online, "some/container", "out", "--repack", "--delete-source")
    assert digests(online.home / "out") == expected
    most = value["held"]["files"] + 1
    assert most < FILES
    assert max(held) <= most
    assert value["download"]["held_bytes"] < value["download"]["bytes"]
    # Every file came once, and its header once more.
    for name in weight_files(hub):
        assert sizes[name] <= hub.sent[name] < 2 * sizes[name]
    assert not (online.home / "out.partial").exists()
    assert not (online.home / ".cache" / "huggingface").exists()


def test_through_the_cache_no_header_is_taken_for_a_file(online, hub, expected: dict[str, str]) -> None:
    converted(online, "some/container", "out", "--repack")
    assert digests(online.home / "out") == expected
    assert not list(online.home.rglob("*.header"))
    hub.forget()
    converted(online, "some/container", "offline", "--repack", "--offline")
    assert hub.asked == []
    assert digests(online.home / "offline") == expected


@pytest.mark.parametrize("mode", ["--delete-source", "--keep-source"])
def test_a_stopped_run_goes_on_without_headers_and_without_what_is_done(
    online, hub, fault, expected: dict[str, str], mode: str
) -> None:
    files = weight_files(hub)
    # Its header is right, and the rest is not: everything before it is finished by then.
    hub.faults = [fault("corrupt", files[4])]
    done = online("convert", "some/container", "out", "--repack", mode)
    assert (done.code, done.slug()) == (6, "download_failed")
    hub.forget()
    hub.faults = []
    value = converted(online, "some/container", "out", "--repack", mode)
    assert digests(online.home / "out") == expected
    assert value["resumed_shards"] > 0
    assert files[0] not in hub.sent


def test_a_dry_run_reads_headers_and_writes_nothing(online, hub, expected: dict[str, str]) -> None:
    before = sorted(online.home.rglob("*"))
    value = converted(online, "some/container", "out", "--repack", "--dry-run", "--delete-source")
    assert sorted(online.home.rglob("*")) == before
    assert hub.total(".safetensors") < value["download"]["bytes"] / 2
    written = converted(online, "some/container", "out", "--repack", "--delete-source")
    assert written["bytes"] == value["bytes"]
    assert written["download"]["held_bytes"] <= value["download"]["held_bytes"]
    assert digests(online.home / "out") == expected


@pytest.mark.parametrize("mode", ["--delete-source", "--keep-source"])
@pytest.mark.parametrize("indexed", [False, True])
def test_a_container_that_is_not_taken_over_is_refused_before_its_weights_come(
    online, hub, tmp_path: Path, indexed: bool, mode: str
) -> None:
    if indexed:
        write_index(tmp_path / "content")
        hub.repos["some/container"].read()
    done = online("convert", "some/container", "out", mode)
    assert (done.code, done.slug()) == (3, "model_unsupported")
    assert "--repack" in done.err
    files = hub.repos["some/container"].files
    assert all(hub.sent.get(name, 0) < files[name].stat().st_size for name in weight_files(hub))
    assert not (online.home / "out.partial").exists()
