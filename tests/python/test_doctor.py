"""`colibri doctor`: every check is made, whatever the others find, and what is not ok has a next step."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import unicodedata
from collections.abc import Callable
from pathlib import Path

import colibri
import pytest
from colibri import diagnosis
from colibri.cli.words import bytes_in_words
from colibri.diagnosis import FRAMES, SAMPLES, TOOL_CALLS, text_checks, tool_call_format

DATA = Path(__file__).resolve().parents[1] / "data"
ORACLE = Path(__file__).resolve().parents[1] / "oracle"
# Root may read everything, unless the right to do so is taken from the process.
OBEDIENT = (
    ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]
    if os.geteuid() == 0
    else []
)


def copied(home: Path, source: Path = ORACLE / "glm_tiny") -> Path:
    folder = home / "model"
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("ref"))
    for file in folder.rglob("*"):
        file.chmod(0o644)
    folder.chmod(0o755)
    return folder


def by_id(checks) -> dict[str, colibri.Check]:
    found = {check.id: check for check in checks}
    assert len(found) == len(list(checks))
    return found


def lines(out: str) -> dict[str, tuple[str, str]]:
    """Status and the rest of every line, by the name of the check; all but the last line are checks."""
    found = {}
    for line in out.splitlines()[:-1]:
        status, name, *rest = line[:4].strip(), *line[6:].split(maxsplit=1)
        found[name] = (status, rest[0] if rest else "")
    return found


def rewrite(file: Path, change: Callable[[dict], None]) -> None:
    value = json.loads(file.read_text("utf-8"))
    change(value)
    file.write_text(json.dumps(value), "utf-8")


def test_the_samples_are_many_and_of_many_scripts() -> None:
    assert len(SAMPLES) * len(FRAMES) >= 200
    scripts = {unicodedata.name(c).split()[0] for text in SAMPLES for c in text if c.isalpha()}
    assert len(scripts) > 20
    for text in SAMPLES:
        assert unicodedata.normalize("NFC", text) == text


def test_a_good_folder_passes() -> None:
    for name in ("glm_tiny", "../data/demo_hf"):
        found = by_id(text_checks(ORACLE / name))
        assert {check.status for check in found.values()} == {"ok"}
        assert "tool-call format glm" in found["model.template"].text
        assert "round trip of 200 texts" in found["model.tokenizer"].text


def test_ct_01_a_missing_template_or_tokenizer_is_a_warning(cli) -> None:
    """CT-01."""
    folder = copied(cli.home, DATA / "demo_hf")
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer.json").unlink()
    done = cli("doctor", "-m", str(folder))
    assert done.code == 0, done.out
    found = lines(done.out)
    for name, file in (("model.template", "chat_template.jinja"), ("model.tokenizer", "tokenizer.json")):
        assert found[name][0] == "warn"
        assert f"→ copy {file}" in found[name][1]
    assert "2 warnings · exit 0" in done.out
    strict = cli("doctor", "-m", str(folder), "--strict")
    assert strict.code == 8
    assert "exit 8" in strict.out


def test_a_tokenizer_that_does_not_fit_the_model_fails(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    rewrite(folder / "config.json", lambda config: config.update(vocab_size=100))
    found = by_id(text_checks(folder))["model.tokenizer"]
    assert found.status == "fail"
    assert "the model has 100 ids" in found.text


def test_a_tokenizer_that_changes_texts_fails_with_an_example(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    rewrite(folder / "tokenizer.json", lambda value: value.update(normalizer={"type": "Lowercase"}))
    found = by_id(text_checks(folder))["model.tokenizer"]
    assert found.status == "fail"
    assert "come back changed, such as 'The quick" in found.text


TEMPLATES = {
    "syntax": ("{% if %}", "fail", "line 1"),
    "raises": ("{{ 1 / 0 }}", "fail", "ZeroDivisionError"),
    "silent": ("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", "warn", "system"),
    "no tool calls": ("{% for m in messages %}{{ m.content }}{% endfor %}", "ok", "no tool calls"),
    "tool calls refused": (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
        "{{ m.content }}{% endfor %}",
        "warn",
        "no tools",
    ),
}


@pytest.mark.parametrize("kind", TEMPLATES)
def test_templates_are_rendered(tmp_path: Path, kind: str) -> None:
    source, status, hint = TEMPLATES[kind]
    folder = copied(tmp_path)
    (folder / "chat_template.jinja").write_text(source)
    found = by_id(text_checks(folder))
    assert found["model.template"].status == status
    assert hint in found["model.template"].text
    assert found["model.tokenizer"].status == "ok"
    assert (found["model.template"].fix is None) == (status == "ok")


def test_every_tool_call_format_is_told_from_the_others() -> None:
    for marks, name in TOOL_CALLS:
        assert tool_call_format(f"colibri_probe_tool {' '.join(marks)}") == f"tool-call format {name}"
    assert tool_call_format("colibri_probe_tool {}") == "tool calls in a format of its own"
    assert tool_call_format("<tool_call><arg_key>") == "no tool calls"


def test_a_check_that_breaks_is_a_failure_and_the_others_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_folder: Path) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(diagnosis, "_tokenizer", broken)
    found = by_id(text_checks(copied(tmp_path)))
    assert found["model.tokenizer"].status == "fail"
    assert "RuntimeError: out of luck" in found["model.tokenizer"].text
    assert found["model.template"].status == "ok"


def test_ux_10_a_file_that_the_drive_does_not_give_is_named(cli) -> None:
    """UX-10, with EIO: the memory of a process has no byte at address 0."""
    folder = copied(cli.home, DATA / "demo_hf")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").symlink_to("/proc/self/mem")
    done = cli("doctor", "-m", str(folder))
    assert done.code == 8
    found = lines(done.out)
    status, text = found["model.tokenizer"]
    assert status == "FAIL"
    assert f"{folder}/tokenizer.json cannot be read: Input/output error" in text
    assert "→ check the drive" in text
    assert found["model.template"][0] == found["model.headers"][0] == "ok"
    assert "1 failure" in done.out


@pytest.mark.skipif(bool(OBEDIENT) and shutil.which("setpriv") is None, reason="root may read everything")
@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "model.safetensors"])
def test_ux_10_a_file_without_permission_is_named(cli, name: str) -> None:
    """UX-10, with EACCES."""
    folder = copied(cli.home, DATA / "demo_hf")
    (folder / name).chmod(0)
    command = [*OBEDIENT, cli.script, "doctor", "-m", str(folder)]
    done = subprocess.run(command, env=cli.environment, cwd=cli.home, capture_output=True, text=True)
    assert done.returncode == 8, done.stdout + done.stderr
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
    assert any(name in line and "ermission denied" in line and "→" in line for line in failed), done.stdout
    assert lines(done.stdout)["model.template"][0] == "ok"


def test_without_a_model_the_machine_alone_is_checked(cli) -> None:
    done = cli("doctor")
    assert done.code == 0, done.out
    found = lines(done.out)
    assert found["machine.cpu"][0] == "ok"
    assert "machine.memory" in found
    assert found["model.files"][0] == "skip"
    assert "colibri doctor -m MODEL" in found["model.files"][1]
    assert not [name for name in found if name.startswith(("model.", "storage.")) and found[name][0] == "ok"]


@pytest.mark.parametrize("name", ["absent", "./absent", "some/model"])
def test_a_model_that_is_not_there_fails_and_the_machine_is_checked(cli, name: str) -> None:
    done = cli("doctor", "-m", name)
    assert done.code == 8
    found = lines(done.out)
    assert found["model.files"][0] == "FAIL"
    assert "→" in found["model.files"][1]
    assert found["machine.cpu"][0] == "ok"


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "config.json"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "safetensors"),
    "cut short": (lambda f: os.truncate(f / "model.safetensors", 100_000), "model.safetensors"),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), "config.json"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_folder_fails_and_the_other_checks_are_made(cli, fault: str) -> None:
    break_it, hint = FAULTS[fault]
    folder = copied(cli.home, DATA / "demo_hf")
    break_it(folder)
    done = cli("doctor", "-m", str(folder))
    assert done.code == 8
    failed = [line for line in done.out.splitlines() if line.startswith("FAIL")]
    assert any(hint in line for line in failed)
    assert all("→" in line for line in failed)
    found = lines(done.out)
    assert found["machine.memory"][0] == found["model.template"][0] == found["model.tokenizer"][0] == "ok"


def test_the_report_is_an_object_too(cli) -> None:
    done = cli("doctor", "-m", "demo", "--json")
    value = json.loads(done.out)
    assert value["version"] == 1
    assert value["exit_code"] == done.code == 0
    names = [check["id"] for check in value["checks"]]
    assert len(names) == len(set(names))
    for check in value["checks"]:
        assert check["status"] in ("ok", "warn", "fail", "skip")
        assert (check["fix"] is None) == (check["status"] == "ok")
    assert names == [check.id for check in colibri.doctor("demo").checks]


def test_ms_01_plan_and_doctor_show_the_same_memory(cli) -> None:
    """MS-01."""
    plan = json.loads(cli("plan", "-m", "demo", "--json", "--ram", "500MB").out)
    value = json.loads(cli("doctor", "-m", "demo", "--json", "--ram", "500MB").out)
    (memory,) = [check for check in value["checks"] if check["id"] == "machine.memory"]
    assert memory["status"] == "ok"
    assert f"a model may take {bytes_in_words(plan['ram_budget_bytes'])}" in memory["text"]
    assert f"this one takes {bytes_in_words(plan['projected_peak_bytes'])}" in memory["text"]


def test_deep_reads_every_byte(cli) -> None:
    folder = copied(cli.home, Path(colibri.__file__).parent / "data" / "demo")
    assert lines(cli("doctor", "-m", str(folder)).out)["model.payload"][0] == "skip"
    done = cli("doctor", "-m", str(folder), "--deep")
    assert lines(done.out)["model.payload"][0] == "ok"
    shard = folder / "experts-00001.safetensors"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    assert cli("doctor", "-m", str(folder)).code == 0
    done = cli("doctor", "-m", str(folder), "--deep")
    assert done.code == 8
    status, text = lines(done.out)["model.payload"]
    assert status == "FAIL"
    assert "experts-00001.safetensors" in text


def test_nothing_is_written(cli) -> None:
    folder = copied(cli.home, DATA / "demo_hf")
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    cli("doctor", "-m", str(folder), "--deep")
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_statuses_are_coloured_where_colour_is_wanted(cli) -> None:
    assert "\x1b" not in cli("doctor", "demo").out
    coloured = cli("doctor", "demo", "--color", "always").out
    assert "\x1b[32m ok \x1b[0m  machine.cpu" in coloured


@pytest.mark.parametrize("value", [1, "yes", None])
def test_deep_is_true_or_false(value: object) -> None:
    with pytest.raises(colibri.InvalidValue):
        colibri.doctor("demo", deep=value)  # type: ignore[arg-type]
