"""Models on the command line: facts, plans, conversion, and what is said about models that cannot be used."""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[1] / "data"
ORACLE = Path(__file__).resolve().parents[1] / "oracle"


def copied(cli, source: Path = ORACLE / "glm_tiny") -> Path:
    folder = cli.home / "model"
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("ref"))
    for file in folder.rglob("*"):
        file.chmod(0o644 if file.is_file() else 0o755)
    folder.chmod(0o755)
    return folder


def config_of(folder: Path, **changes: object) -> None:
    value = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**value, **changes}))


def header_of(file: Path, change: Callable[[dict], None]) -> None:
    data = file.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def truncated(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def misshapen(folder: Path) -> None:
    def change(header: dict) -> None:
        shape = header["model.embed_tokens.weight"]["shape"]
        header["model.embed_tokens.weight"]["shape"] = [shape[1], shape[0]]

    header_of(folder / "model.safetensors", change)


FAULTS: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "model_not_found", "safetensors"),
    "no config": (lambda f: (f / "config.json").unlink(), "model_not_found", "config.json"),
    "truncated file": (truncated, "model_corrupt", "model.safetensors"),
    "wrong shape": (misshapen, "model_corrupt", "model.embed_tokens.weight"),
    "unknown model type": (
        lambda f: config_of(f, model_type="unheard_of"),
        "model_unsupported",
        "unheard_of",
    ),
    "empty file": (
        lambda f: (f / "model.safetensors").write_bytes(b""),
        "model_corrupt",
        "model.safetensors",
    ),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), "model_corrupt", "config.json"),
}
VERBS: dict[str, Callable[[Path], tuple[str, ...]]] = {
    "generate": lambda folder: ("generate", "-m", str(folder), "hi"),
    "chat": lambda folder: ("chat", "-m", str(folder)),
    "plan": lambda folder: ("plan", "-m", str(folder)),
    "inspect": lambda folder: ("inspect", str(folder)),
    "convert": lambda folder: ("convert", str(folder), "out"),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_model_is_named_by_every_verb(cli, fault: str, verb: str) -> None:
    break_it, slug, hint = FAULTS[fault]
    folder = copied(cli)
    break_it(folder)
    done = cli(*VERBS[verb](folder))
    assert (done.code, done.slug()) == (3, slug)
    assert hint in done.err
    assert done.out == ""
    assert not (cli.home / "out").exists()


@pytest.mark.parametrize("verb", VERBS)
def test_a_missing_folder_is_named_by_every_verb(cli, verb: str) -> None:
    done = cli(*VERBS[verb](cli.home / "absent"))
    assert (done.code, done.slug()) == (3, "model_not_found")
    assert "absent" in done.err
    assert "fix:" in done.err
    assert not (cli.home / "out").exists()


@pytest.mark.parametrize("verb", VERBS)
def test_a_missing_shard_is_named_by_every_verb(cli, verb: str) -> None:
    folder = copied(cli, ORACLE / "glm_sparse")
    (folder / "model-00002-of-00002.safetensors").unlink()
    done = cli(*VERBS[verb](folder))
    assert (done.code, done.slug()) == (3, "model_incomplete")
    assert "model-00002-of-00002.safetensors" in done.err
    assert not (cli.home / "out").exists()


@pytest.mark.parametrize("address", ["https://huggingface.co/a/b ", "a/b/c", ""])
def test_ux_07_convert_understands_or_explains_addresses(cli, address: str) -> None:
    """UX-07."""
    done = cli("convert", address, "out", HF_HUB_OFFLINE="1")
    if "a/b " in address:
        assert (done.code, done.slug()) == (6, "download_failed")
        assert "a/b is not on this computer" in done.err
    else:
        assert (done.code, done.slug()) == (2, "invalid_value")
        assert "OWNER/NAME" in done.err
    assert not (cli.home / "out").exists()


def test_a_prompt_longer_than_the_context_is_refused(cli) -> None:
    done = cli("generate", "-c", "32", "word " * 100)
    assert (done.code, done.slug()) == (4, "context_length_exceeded")
    assert "32" in done.err
    assert "--ctx" in done.err
    assert done.out == ""


@pytest.mark.parametrize("verb", ["generate", "chat", "plan"])
def test_ux_06_a_memory_budget_too_small_is_refused_before_anything_is_read(cli, verb: str) -> None:
    """UX-06."""
    arguments = (verb, "--ram", "1MB") if verb != "generate" else (verb, "--ram", "1MB", "hi")
    done = cli(*arguments)
    assert (done.code, done.slug()) == (4, "ram_budget_too_small")
    assert "--ram" in done.err
    assert "resident" in done.err
    assert done.out == ("fits: no\n" if verb == "plan" else "")


def test_a_folder_without_a_tokenizer_says_so_when_text_is_wanted(cli) -> None:
    folder = copied(cli, ORACLE / "glm_groups")
    assert cli("plan", "-m", str(folder)).code == 0
    done = cli("generate", "-m", str(folder), "hi")
    assert (done.code, done.slug()) == (3, "tokenizer_missing")


def test_ct_01_a_missing_chat_template_is_named_and_none_is_guessed(cli) -> None:
    """CT-01."""
    folder = copied(cli, DATA / "demo_hf")
    (folder / "chat_template.jinja").unlink()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    done = cli("generate", "-m", str(folder), "hi")
    assert (done.code, done.slug()) == (3, "template_invalid")
    assert "chat_template.jinja" in done.err
    assert cli("generate", "-m", str(folder), "--raw", "Once upon", "-n", "2").code == 0


def test_a_model_is_an_argument_or_an_option_of_plan_and_inspect(cli) -> None:
    for verb in ("plan", "inspect"):
        values = [json.loads(cli(verb, *given, "--json").out) for given in (("demo",), ("-m", "demo"))]
        assert values[0]["model"] == values[1]["model"]
    assert cli("inspect").out == cli("inspect", "demo").out
    cli.config(f'default_model = "{ORACLE / "glm_tiny"}"\n')
    assert cli("inspect").out == cli("inspect", str(ORACLE / "glm_tiny")).out
    for verb in ("plan", "inspect", "doctor"):
        assert f"colibri {verb} [OPTIONS] [MODEL]" in cli(verb, "--help").out


def test_plan_and_inspect_use_the_same_names(cli) -> None:
    plan, inspection = (json.loads(cli(verb, "demo", "--json").out)["model"] for verb in ("plan", "inspect"))
    assert plan == inspection
    assert plan["hidden_size"] == 256
    assert plan["formats"]["embeddings"] == ["q8"]


def test_a_model_of_the_hugging_face_cache_keeps_its_name(cli) -> None:
    root = cli.home / "hub" / "models--some--model"
    (root / "snapshots").mkdir(parents=True)
    (root / "snapshots" / "0123abcd").symlink_to(DATA / "demo_hf")
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("0123abcd")
    for arguments in (("plan", "some/model"), ("inspect", "some/model")):
        shown = cli(*arguments, HF_HUB_CACHE=str(cli.home / "hub")).out
        assert "some/model ·" in shown
        assert "0123abcd" not in shown


def test_inspect_names_formats_as_convert_takes_them_in_columns(cli) -> None:
    done = cli("inspect", "demo", "-v")
    for row in (r"experts +q4g64 +480 ", r"embedding +q8 +1 ", r"mtp_experts +q8 +96 "):
        assert re.search(f"^{row}", done.out, re.MULTILINE), done.out
    rows = [line for line in done.out.splitlines() if line.endswith(".safetensors")]
    assert len(rows) == len(json.loads(cli("inspect", "demo", "--json").out)["tensors"])
    assert len({row.rindex("  ") for row in rows}) == 1
    assert "int4" not in done.out


def test_plan_shows_tiers_and_whether_it_fits(cli) -> None:
    done = cli("plan")
    assert done.code == 0
    assert done.err == ""
    assert "the Python process itself" in done.out
    for part in (
        "resident",
        "KV cache",
        "scratch",
        "expert cache",
        "all experts",
        "per token",
        "prefill",
        "bottleneck",
        "basis",
        "fits: yes",
    ):
        assert part in done.out


def test_plan_as_json_has_every_number_and_the_same_sums(cli) -> None:
    done = cli("plan", "--json", "--ram", "500MB", "-c", "512")
    value = json.loads(done.out)
    assert (value["version"], value["fits"], value["runs"], value["remote"]) == (1, True, True, False)
    assert (value["ram_budget_bytes"], value["context_tokens"]) == (500_000_000, 512)
    assert value["kv_bytes"] == value["kv_bytes_per_token"] * 512 or value["kv_bytes"] > 0
    parts = value["resident_bytes"] + value["kv_bytes"] + value["scratch_bytes"] + value["cache_bytes"]
    assert value["projected_peak_bytes"] == parts + value["scales"]["resident_bytes"]
    assert value["projected_peak_bytes"] <= value["ram_budget_bytes"]
    load = value["per_token"]
    assert 0 < load["expert_bytes"] < value["expert_bytes_total"]
    assert load["touched_bytes"] == load["expert_bytes"] + load["resident_bytes"]
    assert 0 <= load["read_low_bytes"] <= load["read_high_bytes"] <= load["expert_bytes"]
    assert {"sizes", "disk", "memory", "speed", "scales", "machine", "not_counted"} <= value["sources"].keys()
    small = cli("plan", "--json", "--ram", "1MB")
    assert small.code == 4
    assert json.loads(small.out)["error"]["code"] == "ram_budget_too_small"


def test_every_number_of_the_plan_has_its_unit_in_its_name(cli) -> None:
    """Counts and shares have none; the model's facts are those of inspect."""
    counts = {
        *("slots", "experts_total", "experts_stored", "experts", "cached_per_layer", "experts_per_layer"),
        *("cores_physical", "cores_allowed", "version", "reads_per_miss", "threads", "low", "high"),
    }

    def check(value: object, name: str = "") -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                check(inner, key)
        elif isinstance(value, list):
            for inner in value:
                check(inner, name)
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and name not in counts:
            assert re.search(r"bytes|tokens", name), name

    for arguments in ((), ("--io", "direct", "--ram", "24MB")):
        value = json.loads(cli("plan", "-m", "demo", "--json", *arguments).out)
        value.pop("model")
        check(value)


def test_estimates_are_ranges_and_nothing_is_guessed_without_a_measurement(cli) -> None:
    streaming = ("plan", "-m", "demo", "--io", "direct", "--ram", "24MB")
    value = json.loads(cli(*streaming, "--json").out)
    speed, load = value["tokens_per_second"], value["per_token"]
    assert 0 < load["read_low_bytes"] < load["read_high_bytes"]
    assert 0 < speed["low"] < speed["high"]
    assert value["rates"]["disk"]["bytes_per_second"] > 0
    assert "random reads" in value["sources"]["disk"]
    more = value["more_ram"]
    assert more is None or 0 < more["bytes"] < 10_000_000, "no more than the model lacks"
    shown = cli(*streaming).out
    assert re.search(r"per token  .* of experts touched → .*–.* read → .* on this disk.* ⇒ .* tok/s", shown)
    assert "(measured now)" in shown
    blind = json.loads(cli(*streaming, "--json", "--no-measure").out)
    assert blind["tokens_per_second"] is None
    assert blind["rates"]["disk"]["bytes_per_second"] is None
    assert blind["per_token"] == load
    shown = cli(*streaming, "--no-measure").out
    assert "speed unknown: disk not measured" in shown
    assert "measured now" not in shown


def test_plan_says_what_a_checkpoint_becomes(cli) -> None:
    need = json.loads(cli("plan", str(DATA / "demo_hf"), "--json").out)["conversion"]
    done = cli("convert", str(DATA / "demo_hf"), "out", "--dry-run", "--json")
    assert need["container_bytes"] == pytest.approx(json.loads(done.out)["bytes"], rel=0.05)
    assert need["source_bytes"] == (DATA / "demo_hf" / "model.safetensors").stat().st_size
    assert "convert    makes" in cli("plan", str(DATA / "demo_hf")).out
    assert json.loads(cli("plan", "demo", "--json").out)["conversion"] is None


def test_ranges_in_words() -> None:
    from colibri.cli.plan import number_in_words, range_in_words

    assert [number_in_words(value) for value in (0.034, 0.36, 1.54, 9.99, 41.2)] == [
        *("0.034", "0.36", "1.5", "10.0", "41")
    ]
    assert [number_in_words(value) for value in (186_852.0, 1354.0, 999.0)] == ["190,000", "1,400", "999"]
    assert range_in_words(["8.7 GB", "9.5 GB"]) == "8.7–9.5 GB"
    assert range_in_words(["900.0 MB", "1.1 GB"]) == "900.0 MB – 1.1 GB"
    assert range_in_words(["0.3", "0.6"]) == "0.3–0.6"
    assert range_in_words(["2.0 s", "2.0 s"]) == "2.0 s"


def test_ms_04_the_plan_grows_with_the_context(cli) -> None:
    """MS-04."""
    plans = [json.loads(cli("plan", "--json", "-c", str(ctx)).out) for ctx in (256, 512, 1024)]
    first, second, third = (plan["kv_bytes"] for plan in plans)
    assert second - first == (third - second) // 2 > 0


def test_ms_01_an_unreadable_memory_is_a_warning_with_the_number_in_use(capsys) -> None:
    """MS-01."""
    from types import SimpleNamespace

    from colibri.cli.models import warn_about_memory

    warn_about_memory(
        SimpleNamespace(notes=("could not read free memory, using 2.0 GB; --ram overrides it",))
    )
    assert (
        capsys.readouterr().err == "warning: could not read free memory, using 2.0 GB; --ram overrides it\n"
    )


def test_settings_of_a_model_apply_when_it_is_chosen(cli) -> None:
    folder = copied(cli, DATA / "demo_hf")
    cli.config(f'default_model = "mine"\n[models.mine]\npath = "{folder}"\nctx = 256\n')
    assert json.loads(cli("plan", "--json").out)["context_tokens"] == 256
    assert json.loads(cli("plan", "--json", "-c", "128").out)["context_tokens"] == 128
    assert json.loads(cli("plan", "--json", "-m", "demo").out)["context_tokens"] != 256
    done = cli("generate", "hi", "--temp", "0", "-n", "4")
    assert done.code == 0
    assert "no model configured" not in done.err


def test_inspect_reads_headers_and_lists_tensors(cli) -> None:
    done = cli("inspect", str(DATA / "demo_hf"))
    assert done.code == 0
    assert "glm_moe_dsa" in done.out
    assert "container  Hugging Face checkpoint" in done.out
    assert "tokenizer" in done.out
    listed = cli("inspect", str(DATA / "demo_hf"), "-v").out
    assert "model.embed_tokens.weight" in listed
    value = json.loads(cli("inspect", str(DATA / "demo_hf"), "--json").out)
    assert value["version"] == 1
    assert value["model"]["layers"] == 6
    assert len(value["tensors"]) > 100


def test_cv_07_convert_writes_a_container_that_answers(cli) -> None:
    """CV-07, CV-01: what travels along, and a second run that changes nothing."""
    source = str(DATA / "demo_hf")
    dry = cli("convert", source, "out", "--dry-run", "--json")
    assert dry.code == 0
    assert not (cli.home / "out").exists()
    done = cli("convert", source, "out", "--json")
    assert done.code == 0, done.err
    expected, written = (json.loads(run.out) for run in (dry, done))
    assert expected["bytes"] == written["bytes"]
    assert written["bytes"] == sum(
        (cli.home / "out" / shard["file"]).stat().st_size for shard in written["shards"]
    )
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        assert (cli.home / "out" / name).read_bytes() == (DATA / "demo_hf" / name).read_bytes()
    told = cli("generate", "-m", "out", "Tell me a story about a fox.", "--temp", "0", "-n", "20", "-q")
    assert (
        told.out
        == cli("generate", "-m", "demo", "Tell me a story about a fox.", "--temp", "0", "-n", "20", "-q").out
    )
    again = cli("convert", source, "out")
    assert again.code == 4
    assert again.slug() == "output_not_writable"
    assert "is complete: it holds a container" in again.err
    assert "colibri 1" in cli("inspect", "out").out


def test_cv_03_formats_change_the_size(cli) -> None:
    """CV-03."""
    sizes = {}
    for name in ("q4g64", "q4row", "q8", "f32"):
        done = cli(
            "convert", str(DATA / "demo_hf"), "out", "--dry-run", "--json", "--experts", name, "--dense", name
        )
        assert done.code == 0, done.out + done.err
        sizes[name] = json.loads(done.out)["bytes"]
    assert sizes["q4row"] < sizes["q4g64"] < sizes["q8"] < sizes["f32"]


def test_the_scale_rule_reaches_the_converter(cli) -> None:
    errors = {}
    for rule in ("search", "absmax"):
        done = cli("convert", str(ORACLE / "glm_groups"), rule, "--scale-rule", rule, "--json")
        assert done.code == 0, done.err
        classes = json.loads(done.out)["classes"]
        errors[rule] = max(kind["relative_error"] for kind in classes if kind["format"] == "q4g64")
    assert errors["search"] < errors["absmax"]


def test_a_destination_that_cannot_be_written_is_named(cli) -> None:
    (cli.home / "file").write_text("in the way")
    for destination in ("file", "file/below", "/proc/colibri"):
        done = cli("convert", str(ORACLE / "glm_tiny"), destination)
        assert (done.code, done.slug()) == (4, "output_not_writable")
    assert (cli.home / "file").read_text() == "in the way"
    assert sorted(entry.name for entry in cli.home.iterdir()) == ["file"]


def test_a_disk_that_fills_leaves_nothing_behind(cli) -> None:
    import subprocess

    script = 'ulimit -f 200; exec "$@"'
    source = str(DATA / "demo_hf")
    command = ["bash", "-c", script, "bash", cli.script, "convert", source, "out"]
    done = subprocess.run(
        command, env=cli.environment, cwd=cli.home, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 4
    assert "error[disk_full]" in done.stderr or "error[output_not_writable]" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(cli.home.iterdir()) == []
