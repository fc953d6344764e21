"""Who may import whom, read from the import lines."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import colibri

PACKAGE = Path(colibri.__file__).parent

# Module -> the modules of the package it may import at run time; `config` and `cli` are checked separately.
LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "arguments": {"errors"},
    "closing": set(),
    "results": set(),
    "quantities": set(),
    "build_folder": {"errors", "json_file"},
    "files": set(),
    "json_file": {"errors", "files"},
    "sampling": {"arguments", "errors", "json_file"},
    "setting_kinds": set(),
    "tokenizer": {"errors", "files"},
    "template_sandbox": set(),
    "template": {"errors", "files", "json_file", "template_sandbox"},
    "model_folder": {"errors", "sampling", "template", "tokenizer", "tools"},
    "engine": {"_native", "arguments", "errors", "results"},
    "tools": {"engine", "errors"},
    "schema_source": {"errors"},
    "grammar": {"engine", "errors", "files", "schema_source", "setting_kinds", "tokenizer", "tools"},
    "guide": {"engine", "errors", "grammar", "results", "setting_kinds", "tokenizer"},
    "request": {
        *("engine", "errors", "grammar", "guide", "sampling", "setting_kinds", "tokenizer", "tools"),
    },
    "assembly": {"results", "tokenizer"},
    "decoding": {"engine", "errors", "guide", "sampling"},
    "generation": {
        *("assembly", "closing", "decoding", "engine", "errors", "guide", "request", "results"),
        *("tokenizer", "tools"),
    },
    "chat": {"closing", "errors", "generation", "request", "results", "sampling", "template"},
    "completion": {"errors", "generation", "grammar", "request", "results", "sampling"},
    "conversion": {
        *("arguments", "build_folder", "download", "engine", "errors", "hub", "hub_conversion", "locate"),
        *("model_folder", "results"),
    },
    "diagnosis": {
        *("engine", "errors", "files", "json_file", "model_folder", "results", "template", "tokenizer"),
    },
    "hub": {"__version__", "errors", "files", "hub_files"},
    "hub_conversion": {
        *(
            "build_folder",
            "config",
            "download",
            "engine",
            "errors",
            "hub",
            "hub_files",
            "hub_places",
            "results",
        ),
    },
    "hub_files": set(),
    "hub_places": {"errors", "files", "hub_files"},
    "locate": {"build_folder", "config", "errors", "files", "hub_places"},
    "download": {
        *("config", "engine", "errors", "hub", "hub_files", "hub_places", "locate", "model_folder"),
        "quantities",
    },
    "model": {
        *(
            "chat",
            "closing",
            "completion",
            "engine",
            "errors",
            "generation",
            "hub",
            "model_folder",
            "request",
            "results",
            "sampling",
        ),
    },
}


def imports(path: Path) -> set[str]:
    """Modules of the package that a file imports at run time; type checking blocks do not count."""
    found: set[str] = set()
    for node in _run_time_nodes(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            if node.module == "colibri":
                found |= {name.name for name in node.names}
            elif node.module.startswith("colibri."):
                found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {name.name.split(".")[1] for name in node.names if name.name.startswith("colibri.")}
    return found


def _run_time_nodes(tree: ast.AST) -> list[ast.AST]:
    nodes: list[ast.AST] = []
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        nodes += [child, *_run_time_nodes(child)]
    return nodes


def top_level() -> dict[str, Path]:
    return {path.stem: path for path in PACKAGE.glob("*.py") if not path.stem.startswith("__")}


def test_every_module_imports_only_what_lies_below() -> None:
    for module, allowed in LAYERS.items():
        extra = imports(PACKAGE / f"{module}.py") - allowed
        assert not extra, f"{module} must not import {sorted(extra)}"


def test_every_module_has_a_layer() -> None:
    settings = {module for module in top_level() if module.startswith(("config", "setting"))}
    assert settings | LAYERS.keys() == top_level().keys()


def test_settings_are_leaves() -> None:
    for module, path in top_level().items():
        if module not in LAYERS:
            assert (
                not imports(path) & (LAYERS.keys() - {"errors"}) & {"engine", "chat", "model", "generation"}
            )


def test_nothing_imports_the_command_line() -> None:
    for module, path in top_level().items():
        assert "cli" not in imports(path), module


def test_only_the_engine_imports_the_core() -> None:
    users = {path.stem for path in PACKAGE.rglob("*.py") if "_native" in imports(path)}
    assert users == {"engine"}


def test_only_the_settings_read_the_environment() -> None:
    readers = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb")
    }
    assert readers <= {"config.py"}


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, colibri; colibri.SamplingParams; "
        "print([name for name in ('numpy', 'tokenizers', 'jinja2', 'click', 'asyncio', 'colibri._native') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_model_loads_without_numpy() -> None:
    code = "import sys, colibri.model; print('numpy' in sys.modules, 'jinja2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
