"""Where test data lies, and models that several tests share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import colibri
import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def data() -> Path:
    """Checkpoint, prompts and held-out text of the embedded model."""
    return HERE / "data"


@pytest.fixture(scope="session")
def oracle() -> Path:
    """Checkpoints with the outputs of the reference implementation."""
    return HERE / "oracle"


@pytest.fixture(scope="session")
def demo_hf(data: Path) -> Path:
    """The embedded model as a bf16 checkpoint."""
    return data / "demo_hf"


@pytest.fixture(scope="session")
def model(demo_hf: Path) -> Iterator[colibri.Model]:
    """The bf16 checkpoint, loaded once; tests leave no state in it that matters to others."""
    with colibri.load(demo_hf, ram="1GB", ctx=2048) as opened:
        yield opened


MakeTokenizer = Callable[..., Path]


@pytest.fixture
def make_tokenizer(tmp_path: Path) -> MakeTokenizer:
    """Writes a byte-level BPE `tokenizer.json`; keyword arguments replace parts of it."""

    def make(
        vocab: Mapping[str, Any],
        merges: Sequence[Any] = (),
        added: Sequence[Any] = (),
        ignore_merges: bool = False,
        **replace: Any,
    ) -> Path:
        byte_level = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": False,
        }
        content = {
            "version": "1.0",
            "added_tokens": [
                {
                    "id": len(vocab) + index,
                    "content": text,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": True,
                }
                if isinstance(text, str)
                else text
                for index, text in enumerate(added)
            ],
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": {"type": "BPE", "ignore_merges": ignore_merges, "vocab": vocab, "merges": list(merges)},
            **replace,
        }
        path = tmp_path / "tokenizer.json"
        path.write_text(json.dumps({key: part for key, part in content.items() if part is not ...}))
        return path

    return make
