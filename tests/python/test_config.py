"""Settings: precedence, sources, warnings, and the kinds of value."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from colibri import config
from colibri.config import ConfigFile, Environment
from colibri.errors import InvalidValue
from colibri.sampling import BUILT_IN, LIMITS
from colibri.setting_kinds import DURATION
from colibri.settings import BY_NAME, BY_VARIABLE, SETTINGS

ROOT = Path(__file__).resolve().parents[2]


def environment(folder: Path, **variables: str) -> Environment:
    return Environment({"XDG_CONFIG_HOME": str(folder), "HOME": str(folder), **variables})


def write(folder: Path, text: str) -> Path:
    file = folder / "colibri" / "config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


# A value for every kept setting, as written on the command line or in a variable, and as it is meant.
SAMPLES: dict[str, tuple[str, object]] = {
    "model": ("some/where", "some/where"),
    "ram": ("20GiB", "20GiB"),
    "ctx": ("4096", 4096),
    "threads": ("3", 3),
    "io": ("mmap", "mmap"),
    "max_tokens": ("7", 7),
    "temp": ("0.25", 0.25),
    "top_p": ("0.5", 0.5),
    "top_k": ("40", 40),
    "min_p": ("0.1", 0.1),
    "repeat_penalty": ("1.2", 1.2),
    "presence_penalty": ("0.3", 0.3),
    "frequency_penalty": ("-0.3", -0.3),
    "seed": ("18446744073709551615", 2**64 - 1),
    "stop": ("END", ("END",)),
    "timeout": ("1h30m", 5400.0),
    "think": ("yes", True),
    "reasoning_effort": ("high", "high"),
    "schema_lenient": ("1", True),
    "json_whitespace": ("flexible", "flexible"),
    "grammar_mode": ("draft", "draft"),
    "draft": ("off", "off"),
    "draft_max": ("8", 8),
    "system": ("Be brief.", "Be brief."),
    "show_thinking": ("none", "none"),
    "confirm_over": ("90s", 90.0),
    "no_stats": ("1", True),
    "pull": ("1", True),
    "offline": ("1", True),
    "quiet": ("true", True),
    "verbose": ("2", 2),
    "color": ("never", "never"),
    "progress": ("plain", "plain"),
}


def test_samples_cover_every_kept_setting() -> None:
    assert set(SAMPLES) == {setting.name for setting in SETTINGS if setting.key}


@pytest.mark.parametrize("name", SAMPLES)
def test_every_variable_reaches_its_setting(name: str, tmp_path: Path) -> None:
    text, meant = SAMPLES[name]
    settings = config.load({}, environment(tmp_path, **{BY_NAME[name].variable: text}))
    assert settings[name] == meant
    assert settings.values[name].source == "environment"
    assert settings.values[name].origin == BY_NAME[name].variable
    assert settings.warnings == []


@pytest.mark.parametrize("name", SAMPLES)
def test_every_key_of_the_file_reaches_its_setting(name: str, tmp_path: Path) -> None:
    _, meant = SAMPLES[name]
    if name == "seed":
        meant = 2**63 - 1  # the largest whole number of TOML
    shown = {True: "true", False: "false"}.get(meant, meant) if isinstance(meant, bool) else meant  # type: ignore[call-overload]
    shown = list(shown) if isinstance(shown, tuple) else shown
    literal = (
        f'"{shown}"'
        if isinstance(shown, str) and not isinstance(meant, bool)
        else str(shown).replace("'", '"')
    )
    write(tmp_path, f"{BY_NAME[name].key} = {literal}\n")
    settings = config.load({}, environment(tmp_path))
    assert settings[name] == meant
    assert settings.values[name].source == "file"
    assert settings.warnings == []


def test_precedence_is_flag_environment_model_table_file_model_default(tmp_path: Path) -> None:
    write(tmp_path, 'temp = 0.1\n[models.m]\npath = "/x"\ntemp = 0.2\n')
    given: dict[str, object] = {"temp": 0.4}
    env = environment(tmp_path, COLIBRI_TEMP="0.3")
    empty = tmp_path / "empty"
    seen = []
    for flags, variables, with_table in (
        (given, env, True),
        ({}, env, True),
        ({}, environment(tmp_path), True),
    ):
        settings = config.load(flags, variables)
        if with_table:
            settings.use_model_table("m")
        settings.use_model_defaults({"temperature": 0.7})
        seen.append((settings["temp"], settings.values["temp"].source))
    without_table = config.load({}, environment(tmp_path))
    without_table.use_model_defaults({"temperature": 0.7})
    seen.append((without_table["temp"], without_table.values["temp"].source))
    from_model = config.load({}, environment(empty))
    seen.append((from_model["temp"], from_model.values["temp"].source))
    from_model.use_model_defaults({"temperature": 0.7})
    seen.append((from_model["temp"], from_model.values["temp"].source))
    assert seen == [
        (0.4, "flag"), (0.3, "environment"), (0.2, "file"), (0.1, "file"), (1.0, "default"), (0.7, "model"),
    ]  # fmt: skip


def test_unknown_variable_is_a_warning_with_the_nearest_name(tmp_path: Path) -> None:
    settings = config.load({}, environment(tmp_path, COLIBRI_THREAD="4"))
    assert settings.warnings == ["COLIBRI_THREAD is not a setting. Did you mean COLIBRI_THREADS?"]
    assert settings["threads"] is None


def test_unknown_keys_of_the_file_are_warnings_with_the_nearest_name(tmp_path: Path) -> None:
    write(tmp_path, 'temperatur = 1\nctxx = 5\n[models.a]\npath = "/x"\ntop_q = 1\n[serve]\nport = 1\n')
    warnings = config.load({}, environment(tmp_path)).warnings
    assert len(warnings) == 4
    assert "ctxx" in warnings[1]
    assert "Did you mean ctx?" in warnings[1]
    assert any("top_q" in warning and "top_" in warning.split("mean")[-1] for warning in warnings)
    assert any("[serve]" in warning for warning in warnings)


def test_a_setting_in_the_wrong_table_is_a_warning_that_names_the_right_place(tmp_path: Path) -> None:
    write(tmp_path, '[generation]\ntemp = 1\n[models.a]\npath = "/x"\nquiet = true\n')
    for warning in config.load({}, environment(tmp_path)).warnings:
        assert "top of the file" in warning


def test_an_effort_implies_reasoning_unless_somebody_with_as_much_weight_refuses(tmp_path: Path) -> None:
    write(tmp_path, "think = false\n")
    assert not config.load({}, environment(tmp_path)).thinking
    assert config.load({"reasoning_effort": "low"}, environment(tmp_path)).thinking
    assert not config.load({"reasoning_effort": "low", "think": False}, environment(tmp_path)).thinking
    write(tmp_path, 'reasoning_effort = "low"\n')
    assert config.load({}, environment(tmp_path)).thinking
    assert not config.load({}, environment(tmp_path, COLIBRI_THINK="no")).thinking


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("COLIBRI_TOP_P", "1.5"),
        ("COLIBRI_TOP_P", "-0.1"),
        ("COLIBRI_MIN_P", "2"),
        ("COLIBRI_TEMP", "-1"),
        ("COLIBRI_TEMP", "nan"),
        ("COLIBRI_TEMP", "abc"),
        ("COLIBRI_REPEAT_PENALTY", "0"),
        ("COLIBRI_REPEAT_PENALTY", "1e9"),
        ("COLIBRI_RAM", "20"),
        ("COLIBRI_RAM", "0GB"),
        ("COLIBRI_RAM", "101%"),
        ("COLIBRI_CTX", "0"),
        ("COLIBRI_THREADS", "0"),
        ("COLIBRI_SEED", "-1"),
        ("COLIBRI_SEED", str(2**64)),
        ("COLIBRI_TIMEOUT", "soon"),
        ("COLIBRI_TIMEOUT", "0"),
        ("COLIBRI_IO", "fast"),
        ("COLIBRI_THINK", "perhaps"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_its_place(variable: str, value: str, tmp_path: Path) -> None:
    settings = config.load({}, environment(tmp_path, **{variable: value}))
    with pytest.raises(InvalidValue) as caught:
        settings.need(BY_VARIABLE[variable].name)
    assert caught.value.code == "invalid_value"
    assert variable in caught.value.message
    assert value in caught.value.message
    assert "wanted" in (caught.value.why or "")


def test_a_wrong_value_in_the_file_names_key_and_file(tmp_path: Path) -> None:
    file = write(tmp_path, 'ctx = "many"\n')
    settings = config.load({}, environment(tmp_path))
    settings.need("ram")
    assert settings["ctx"] == "auto"
    config.load({"ctx": 5}, environment(tmp_path)).need("ctx")
    with pytest.raises(InvalidValue) as caught:
        settings.need("ctx")
    assert "ctx" in caught.value.message
    assert str(file) in caught.value.message


@pytest.mark.parametrize("text", ["ram = ", "\xff = 1", "[models.a]\nctx = 4\n", "models = 4\n"])
def test_a_file_that_cannot_be_used_is_an_error_that_names_it(text: str, tmp_path: Path) -> None:
    file = write(tmp_path, "")
    file.write_bytes(text.encode("latin-1"))
    settings = config.load({}, environment(tmp_path))
    assert len(settings.faults) == 1
    with pytest.raises(InvalidValue) as caught:
        settings.need(*settings.faults)
    assert str(file) in caught.value.message


def test_no_file_in_the_working_folder_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("colibri.toml", "config.toml", ".colibri.toml"):
        (tmp_path / name).write_text("ctx = 5\n")
    assert config.load({}, environment(tmp_path / "home"))["ctx"] == "auto"


def test_durations() -> None:
    parse = DURATION.parse
    assert [parse(text) for text in ("90s", "10m", "1h30m", "250ms", "2.5", 3)] == [
        90.0,
        600.0,
        5400.0,
        0.25,
        2.5,
        3.0,
    ]


def test_sampling_settings_have_the_ranges_and_defaults_of_the_sampler() -> None:
    for setting in SETTINGS:
        if not setting.parameter:
            continue
        limits = LIMITS[setting.parameter]
        low, high = (int(limits.low), int(limits.high)) if limits.whole else (limits.low, limits.high)
        assert setting.kind.parse(str(high)) == high
        if not limits.above:
            assert setting.kind.parse(str(low)) == low
        for outside in (low if limits.above else low - 1, high + 1):
            with pytest.raises(ValueError, match="wanted"):
                setting.kind.parse(str(outside))
        assert setting.default == getattr(BUILT_IN, setting.parameter)


def test_no_other_module_reads_the_environment() -> None:
    readers = [
        file.name
        for file in (ROOT / "python" / "colibri").rglob("*.py")
        if re.search(r"os\.(environ|getenv)", file.read_text(encoding="utf-8"))
    ]
    assert readers == ["config.py"]


def test_an_absent_file_is_an_empty_one(tmp_path: Path) -> None:
    file = ConfigFile.read(environment(tmp_path))
    assert (file.exists, file.values, file.models, file.models_dir) == (False, {}, {}, ())
