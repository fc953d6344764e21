"""`colibri convert` of a repository, against a hub on the loopback interface."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

ORACLE = Path(__file__).resolve().parents[1] / "oracle"
SHARDS = 6
LAYOUT = "model-{:05}-of-{:05}.safetensors"


def sharded(folder: Path) -> Path:
    """A checkpoint in several shards, one after the other in the order of its tensors."""
    from safetensors import safe_open
    from safetensors.numpy import save_file

    folder.mkdir()
    source = ORACLE / "glm_tiny"
    for path in source.iterdir():
        if path.is_file() and path.suffix != ".safetensors":
            shutil.copy(path, folder / path.name)
            (folder / path.name).chmod(0o644)
    with safe_open(source / "model.safetensors", "numpy") as tensors:
        names = sorted(tensors.keys(), key=_in_order)
        each = -(-len(names) // SHARDS)
        parts = [names[start : start + each] for start in range(0, len(names), each)]
        weight_map = {}
        for index, part in enumerate(parts):
            file = LAYOUT.format(index + 1, len(parts))
            save_file({name: tensors.get_tensor(name) for name in part}, folder / file)
            weight_map.update(dict.fromkeys(part, file))
    total = sum((folder / file).stat().st_size for file in set(weight_map.values()))
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def _in_order(name: str) -> tuple[int, int, str]:
    parts = name.split(".")
    layer = int(parts[2]) if parts[:2] == ["model", "layers"] else (-1 if "embed" in name else 1000)
    return layer, int(parts[5]) if "experts" in parts and parts[5].isdigit() else -1, name


@pytest.fixture
def online(cli, hub, tmp_path: Path):
    """The program with a hub that has some/checkpoint in several shards."""
    cli.environment.update(HF_ENDPOINT=hub.url, HF_HUB_DOWNLOAD_TIMEOUT="5", NO_PROXY="127.0.0.1")
    hub.add("some/checkpoint", sharded(tmp_path / "content"))
    return cli


def shard_files(folder: Path) -> list[Path]:
    """Weight files of the source that lie in a folder, those on their way included."""
    return [path for path in folder.glob("model-*.safetensors*") if path.is_file()] if folder.is_dir() else []


def digests(folder: Path) -> dict[str, str]:
    """What a container is: its files with their digests, as its manifest has them."""
    manifest = json.loads((folder / "colibri.json").read_text())
    return {entry["file"]: entry["sha256"] for entry in manifest["shards"] + manifest["files"]}


def converted(cli, *arguments: str) -> dict:
    done = cli("convert", *arguments, "--json")
    assert done.code == 0, done.err
    value: dict = json.loads(done.out)
    assert value["version"] == 1
    return value


@pytest.fixture
def expected(online, tmp_path: Path) -> dict[str, str]:
    """The container that the same checkpoint gives from a folder."""
    converted(online, str(tmp_path / "content"), "expected")
    return digests(online.home / "expected")


def test_a_repository_is_converted_through_the_cache(online, hub, expected: dict[str, str]) -> None:
    value = converted(online, "some/checkpoint", "out", "--workers", "1")
    assert digests(online.home / "out") == expected
    assert value["source"] == "some/checkpoint"
    assert value["download"]["commit"] == hub.repos["some/checkpoint"].commit
    assert not (online.home / "out.partial").exists()
    assert not (online.home / "out" / "source").exists()
    manifest = json.loads((online.home / "out" / "colibri.json").read_text())
    assert manifest["source"]["name"] == f"some/checkpoint@{hub.repos['some/checkpoint'].commit}"
    # All is in the cache now: a second conversion fetches nothing, and needs no network.
    hub.forget()
    converted(online, "some/checkpoint", "again")
    assert hub.total() == 0
    hub.forget()
    converted(online, "some/checkpoint", "offline", "--offline")
    assert hub.asked == []
    assert digests(online.home / "offline") == expected


def test_with_delete_source_only_a_few_files_lie_here_at_a_time(
    online, hub, expected: dict[str, str]
) -> None:
    held: list[int] = []
    staging = online.home / "out.partial" / "source"
    hub.on_file = lambda _name: held.append(len(shard_files(staging)))
    value = converted(online, "some/checkpoint", "out", "--delete-source")
    assert digests(online.home / "out") == expected
    assert sum(name.startswith("model-") for name in hub.sent) == len(shard_files_of(hub)) == SHARDS
    most = value["held"]["files"] + 1
    assert most < SHARDS
    assert max(held) <= most
    assert value["download"]["held_bytes"] < value["download"]["bytes"]
    assert not (online.home / ".cache" / "huggingface").exists()
    assert sorted(path.name for path in (online.home / "out").iterdir()) == sorted(
        [*expected, "colibri.json"]
    )


def shard_files_of(hub) -> list[str]:
    files = hub.repos["some/checkpoint"].files
    return [name for name in files if name.startswith("model-") and name.endswith(".safetensors")]


@pytest.mark.parametrize("mode", ["--delete-source", "--keep-source"])
def test_a_killed_conversion_fetches_and_writes_only_what_is_missing(
    online, hub, fault, expected: dict[str, str], mode: str
) -> None:
    # The fourth shard never comes: everything before it is finished by then.
    last = shard_files_of(hub)[3]
    hub.faults = [fault("slow", last, times=1, after=1000, seconds=60)]
    process = online.start("convert", "some/checkpoint", "out", mode)
    journal = online.home / "out.partial" / ".colibri-convert.json"
    limit = time.monotonic() + 60
    while not (journal.is_file() and json.loads(journal.read_text())["shards"] and last in hub.asked_names()):
        assert time.monotonic() < limit
        assert process.poll() is None, online.end(process).err
        time.sleep(0.02)
    process.kill()
    online.end(process)
    finished = json.loads(journal.read_text())["shards"]
    hub.forget()
    value = converted(online, "some/checkpoint", "out", mode)
    assert digests(online.home / "out") == expected
    assert value["resumed_shards"] >= len(finished) > 0
    assert shard_files_of(hub)[0] not in hub.sent
    assert hub.total(".safetensors") < value["download"]["bytes"]


def test_ctrl_c_prints_the_command_that_goes_on(online, hub, fault, expected: dict[str, str]) -> None:
    hub.faults = [fault("slow", shard_files_of(hub)[3], times=1, after=1000, seconds=60)]
    process = online.start("convert", "some/checkpoint", "out", "--experts", "q8", "--delete-source")
    limit = time.monotonic() + 60
    while shard_files_of(hub)[3] not in hub.asked_names():
        assert time.monotonic() < limit
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    done = online.end(process)
    assert done.code == 130, done.err
    assert "colibri convert some/checkpoint out --experts q8 --delete-source" in done.err
    assert "Traceback" not in done.err
    assert not (online.home / "out").exists()
    differs = online("convert", "some/checkpoint", "out", "--delete-source")
    assert (differs.code, differs.slug()) == (2, "convert_parameters_differ")
    assert "--experts" in differs.err
    assert "going on" not in differs.err
    done = online("convert", "some/checkpoint", "out", "--experts", "q8", "--delete-source")
    assert done.code == 0, done.err
    assert re.search(r"^going on: \d+ shards? \(", done.err, re.MULTILINE), done.err


def test_a_conversion_goes_on_with_the_commit_with_which_it_began(online, hub, fault, tmp_path: Path) -> None:
    hub.faults = [fault("status", shard_files_of(hub)[2], status=404)]
    done = online("convert", "some/checkpoint", "out", "--delete-source")
    assert (done.code, done.slug()) == (6, "download_failed")
    assert "colibri convert some/checkpoint out --delete-source" in done.err
    hub.faults = []
    repo = hub.repos["some/checkpoint"]
    old = repo.commit
    assert (online.home / "out.partial" / "source" / ".colibri-pull.json").is_file()
    config = json.loads((tmp_path / "content" / "config.json").read_text())
    (tmp_path / "content" / "config.json").write_text(json.dumps({**config, "note": "newer"}))
    repo.read()
    # The old commit cannot be had from this server any more: that is said, and nothing is mixed.
    done = online("convert", "some/checkpoint", "out", "--delete-source")
    assert done.code == 6
    assert old in "".join(hub.asked)
    done = online("convert", "some/checkpoint", "out", "--delete-source", "--revision", repo.commit)
    assert (done.code, done.slug()) == (2, "convert_parameters_differ")
    assert old in done.err


def test_a_dry_run_fetches_only_small_files_and_writes_nothing(online, hub) -> None:
    before = sorted(online.home.rglob("*"))
    value = converted(online, "some/checkpoint", "out", "--dry-run", "--delete-source")
    assert sorted(online.home.rglob("*")) == before
    assert hub.total(".safetensors") == 0
    assert value["download"]["missing_bytes"] == value["download"]["bytes"] > 0
    assert 0 < value["download"]["held_bytes"] < value["download"]["bytes"]
    # What the run looks for: the container, and the source files beside it.
    assert value["space"]["needed_bytes"] == value["bytes"] + value["download"]["held_bytes"]
    text = online("convert", "some/checkpoint", "out", "--dry-run").out
    for word in ("would write", "download", "space", "time"):
        assert word in text
    written = converted(online, "some/checkpoint", "out", "--delete-source")
    assert written["bytes"] == value["bytes"]


def test_a_repository_without_an_index_is_read_by_its_headers(online, hub, tmp_path: Path) -> None:
    hub.add("some/single", ORACLE / "glm_tiny")
    dry = converted(online, "some/single", "out", "--dry-run")
    size = (ORACLE / "glm_tiny" / "model.safetensors").stat().st_size
    assert hub.total(".safetensors") < size / 4
    done = converted(online, "some/single", "out", "--delete-source")
    assert done["bytes"] == dry["bytes"]
    assert not (online.home / "out.partial").exists()


def test_space_is_looked_at_before_the_weights_come(online, hub, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = hub.repos["some/checkpoint"]
    real = repo.listing

    def huge(repo_id: str) -> dict:
        value = real(repo_id)
        for sibling in value["siblings"]:
            if sibling["rfilename"] == shard_files_of(hub)[4]:
                sibling["size"] = sibling["lfs"]["size"] = 10**17
        return value

    monkeypatch.setattr(repo, "listing", huge)
    for mode in ("--delete-source", "--keep-source"):
        done = online("convert", "some/checkpoint", "out", mode)
        assert (done.code, done.slug()) == (4, "disk_full")
        assert hub.total(".safetensors") == 0


def test_a_source_that_is_no_model_leaves_nothing(online, hub, tmp_path: Path) -> None:
    content = tmp_path / "other"
    content.mkdir()
    (content / "config.json").write_text('{"model_type": "unheard_of"}')
    (content / "model.safetensors").write_bytes((ORACLE / "glm_tiny" / "model.safetensors").read_bytes())
    hub.add("some/other", content)
    done = online("convert", "some/other", "out", "--delete-source")
    assert (done.code, done.slug()) == (3, "model_unsupported")
    assert not (online.home / "out").exists()
    assert not (online.home / "out.partial").exists()
    done = online("convert", "some/absent", "out")
    assert (done.code, done.slug()) == (6, "download_failed")
    done = online("convert", "some/absent", "out", "--offline")
    assert (done.code, done.slug()) == (6, "download_failed")


def test_progress_covers_the_whole_run(online, hub) -> None:
    done = online("convert", "some/checkpoint", "out", "--progress", "json", "-v", "--json")
    assert done.code == 0, done.err
    events = [json.loads(line) for line in done.err.splitlines() if line.startswith('{"phase"')]
    run = [event for event in events if event["phase"] == "convert"]
    assert [event["done"] for event in run] == sorted(event["done"] for event in run)
    assert run[-1]["total"] == json.loads(done.out)["download"]["bytes"]
    assert run[-1]["done"] == run[-1]["total"]


def test_cv_01_a_second_run_into_a_finished_container_changes_nothing(
    online, hub, expected: dict[str, str], tmp_path: Path
) -> None:
    """CV-01."""
    folder = online.home / "expected"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for source in (str(tmp_path / "content"), "some/checkpoint"):
        for options in ((), ("--no-mtp",), ("--mtp-format", "q4row"), ("--delete-source",)):
            done = online("convert", source, "expected", *options)
            assert (done.code, done.slug()) == (4, "output_not_writable")
            assert "is complete: it holds a container" in done.err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert not (online.home / "expected.partial").exists()
    assert hub.total() == 0


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--experts", "q3g64"),
        ("--dense", "q8"),
        ("--embeddings", "q4g64"),
        ("--scale-rule", "absmax"),
        ("--no-mtp", ""),
    ],
)
def test_cv_07_other_settings_do_not_go_on_with_what_was_begun(
    online, hub, fault, flag: str, value: str
) -> None:
    """CV-07."""
    hub.faults = [fault("status", shard_files_of(hub)[4], status=404)]
    assert online("convert", "some/checkpoint", "out").code == 6
    hub.faults = []
    begun = online("convert", "some/checkpoint", "out", "--dry-run")
    assert re.search(r"^going on   \d+ shards? \(.*\) done already$", begun.out, re.MULTILINE), begun.out
    unfinished = online("generate", "-m", "./out", "hi")
    assert (unfinished.code, unfinished.slug()) == (3, "model_incomplete")
    assert "colibri convert some/checkpoint out" in unfinished.err
    journal = (online.home / "out.partial" / ".colibri-convert.json").read_text()
    done = online("convert", "some/checkpoint", "out", *filter(None, (flag, value)))
    assert (done.code, done.slug()) == (2, "convert_parameters_differ")
    assert flag in done.err
    assert (online.home / "out.partial" / ".colibri-convert.json").read_text() == journal
