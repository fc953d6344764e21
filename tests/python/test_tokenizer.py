"""The tokenizer: equal to the reference library, exact bytes, whole characters in streams, hostile files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import colibri
import pytest
from colibri.tokenizer import FILE_LIMIT, Tokenizer

REPLACEMENT = "\ufffd"


@pytest.fixture(scope="module")
def reference(oracle: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((oracle / "tokenizer" / "reference.json").read_text("utf-8"))
    return loaded


@pytest.fixture(scope="module")
def tokenizer(oracle: Path) -> Tokenizer:
    return Tokenizer.read(oracle / "tokenizer" / "tokenizer.json", 512)


@pytest.fixture
def byte_tokenizer(make_tokenizer: Any) -> Tokenizer:
    """One id for each byte value, in this order, and two special tokens."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    shifted = iter(range(0x100, 0x200))
    names = [chr(byte) if byte in printable else chr(next(shifted)) for byte in range(256)]
    vocab = {name: byte for byte, name in enumerate(names)}
    return Tokenizer.read(make_tokenizer(vocab, added=["<|im_end|>", "<|user|>"]))


def stream(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """The pieces that the incremental decoder gives for each id, and the rest at the end."""
    decoder = tokenizer.decoder(skip_special_tokens=False)
    return [*(decoder.push(token) for token in ids), decoder.finish()]


# Equality with the reference library.


def test_encoding_equals_the_reference(tokenizer: Tokenizer, reference: dict[str, Any]) -> None:
    assert len(reference["encode"]) >= 40
    for case in reference["encode"]:
        assert tokenizer.encode(case["text"]) == case["ids"], case["name"]
        assert tokenizer.decode(case["ids"]) == case["decoded"], case["name"]
        skipped = tokenizer.decode(case["ids"], skip_special_tokens=True)
        assert skipped == case["decoded_skip_special"], case["name"]


def test_decoding_of_broken_characters_equals_the_reference(
    tokenizer: Tokenizer, reference: dict[str, Any]
) -> None:
    for case in reference["decode"]:
        assert tokenizer.decode(case["ids"]) == case["decoded"]
        if case["bytes"] is not None:
            assert tokenizer.decode_bytes(case["ids"]) == bytes(case["bytes"])


def test_streams_are_prefixes_of_the_reference(tokenizer: Tokenizer, reference: dict[str, Any]) -> None:
    for case in reference["stream"]:
        pieces = stream(tokenizer, case["ids"])
        for count, prefix in enumerate(case["prefixes"], start=1):
            shown = "".join(pieces[:count])
            # The reference decodes an unfinished character as U+FFFD; the stream holds it back.
            assert prefix.startswith(shown)
            assert set(prefix[len(shown) :]) <= {REPLACEMENT}
        assert "".join(pieces) == case["prefixes"][-1]


def test_every_byte_has_its_id(tokenizer: Tokenizer, reference: dict[str, Any]) -> None:
    ids = reference["byte_token_ids"]
    assert [tokenizer.decode_bytes([token]) for token in ids] == [bytes([byte]) for byte in range(256)]


# Cases.


def test_tk_01_markers_are_split_off_first(byte_tokenizer: Tokenizer) -> None:
    end, user = 256, 257
    for text, marker in [("Hi.<|im_end|>", end), (")<|user|>", user), ("…<|im_end|>", end)]:
        ids = byte_tokenizer.encode(text)
        assert [token for token in ids if token >= 256] == [marker]
        assert ids[-1] == marker
        assert byte_tokenizer.decode(ids) == text


@pytest.mark.parametrize(("ignore", "expected"), [(True, [4]), (False, [3, 2])])
def test_tk_03_ignore_merges(make_tokenizer: Any, ignore: bool, expected: list[int]) -> None:
    vocab = {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4}
    path = make_tokenizer(vocab, [["a", "b"]], ignore_merges=ignore)
    assert Tokenizer.read(path).encode("abc") == expected


def test_tk_04_merges_as_pairs_and_as_strings(make_tokenizer: Any) -> None:
    vocab = {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4}
    strings = Tokenizer.read(make_tokenizer(vocab, ["a b", "ab c"])).encode("abcab")
    pairs = Tokenizer.read(make_tokenizer(vocab, [["a", "b"], ["ab", "c"]])).encode("abcab")
    assert strings == pairs == [4, 3]
    # Only a pair can say that a token holds a space.
    split = {"type": "Split", "pattern": {"Regex": "\\n"}, "behavior": "Isolated", "invert": False}
    spaced = {" ": 0, "b c": 1, " b c": 2, "b": 3, "c": 4, "b ": 5}
    path = make_tokenizer(spaced, [["b", " "], ["b ", "c"], [" ", "b c"]], pre_tokenizer=split)
    assert Tokenizer.read(path).encode(" b c") == [2]


def test_tk_06_scalars_not_perceived_characters(tokenizer: Tokenizer, demo_hf: Path) -> None:
    demo = Tokenizer.read(demo_hf / "tokenizer.json")
    for text in ["किसानों", "e\u0301", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "a\r\nb"]:
        for one in (tokenizer, demo):
            assert one.decode_bytes(one.encode(text)) == text.encode()


def test_tk_06_ids_equal_the_reference(tokenizer: Tokenizer, reference: dict[str, Any]) -> None:
    texts = {case["text"]: case["ids"] for case in reference["encode"]}
    combining = [text for text in texts if any(char in text for char in "\u0301\u200d\r")]
    assert len(combining) >= 2
    for text in combining:
        assert tokenizer.encode(text) == texts[text]


def test_tk_07_unicode_classes_decide_the_pieces(tokenizer: Tokenizer) -> None:
    # The split rule of the file: letters, number signs up to three, white space.
    split = tokenizer._backend.pre_tokenizer.pre_tokenize_str
    pieces = {text: [text[start:end] for _, (start, end) in split(text)] for text in _SEPARATORS}
    assert pieces == _SEPARATORS
    for text in _SEPARATORS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


_SEPARATORS = {
    "\u2029 \ua3e4": ["\u2029", " \ua3e4"],
    "4 ½ months": ["4", " ", "½", " months"],
    "\u00a0x": ["\u00a0x"],
}


def test_tk_09_the_longer_marker_wins(make_tokenizer: Any) -> None:
    vocab = {"s": 0, "a": 1}
    tokenizer = Tokenizer.read(make_tokenizer(vocab, added=["<|end|>", "<|end|>s"]))
    assert tokenizer.encode("<|end|>s<|end|>") == [3, 2]


def test_tk_10_bytes_that_are_no_characters(tokenizer: Tokenizer) -> None:
    for data in [b"\xe6\xad", b"\xff", b"", b"ab\xe6\xadcd\xff", "ok é".encode()]:
        assert tokenizer.decode_bytes(tokenizer.encode_bytes(data)) == data
    every = [tokenizer.decode_bytes([token]) for token in range(tokenizer.size)]
    assert all(isinstance(piece, bytes) for piece in every)
    assert {bytes([byte]) for byte in range(256)} <= set(every)
    assert tokenizer.encode_bytes("ok é".encode()) == tokenizer.encode("ok é")


def test_tk_11_a_character_over_two_tokens(byte_tokenizer: Tokenizer, make_tokenizer: Any) -> None:
    ids = list(b"ok \xf0\x9f\x98\x80\xc3\xa9")
    pieces = stream(byte_tokenizer, ids)
    assert pieces == ["o", "k", " ", "", "", "", "😀", "", "é", ""]
    assert "".join(pieces) == byte_tokenizer.decode(ids) == "ok 😀é"
    assert REPLACEMENT not in "".join(pieces)


def test_tk_13_real_replacement_signs_and_lone_bytes(byte_tokenizer: Tokenizer) -> None:
    signs = list(REPLACEMENT.encode()) * 3000
    pieces = stream(byte_tokenizer, signs)
    assert pieces[2::3] == [REPLACEMENT] * 3000
    assert stream(byte_tokenizer, [0x80] * 100) == [*[REPLACEMENT] * 100, ""]


def test_tk_13_the_decoder_keeps_no_history(byte_tokenizer: Tokenizer) -> None:
    # Constant cost per token: what the decoder holds does not grow.
    decoder = byte_tokenizer.decoder()
    sizes = set()
    for token in list(REPLACEMENT.encode()) * 1000:
        decoder.push(token)
        state = decoder._decode.__self__.getstate()  # type: ignore[attr-defined]
        sizes.add(sys.getsizeof(state[0]))
    assert max(sizes) <= sys.getsizeof(b"abc")


def test_tk_14_a_character_cut_off_at_the_end(byte_tokenizer: Tokenizer) -> None:
    ids = list(b"ab\xe6\xad")
    assert stream(byte_tokenizer, ids) == ["a", "b", "", "", REPLACEMENT]
    assert byte_tokenizer.decode(ids) == "ab" + REPLACEMENT


def test_special_tokens_are_left_out_of_a_stream(byte_tokenizer: Tokenizer) -> None:
    decoder = byte_tokenizer.decoder()
    assert [decoder.push(token) for token in (ord("a"), 256, ord("b"))] == ["a", "", "b"]


def test_lone_surrogates_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(colibri.InvalidValue, match="surrogates"):
        tokenizer.encode("a\ud800")


# Files that cannot be used.

_LETTERS = {"a": 0, "b": 1, "ab": 2}


@pytest.mark.parametrize(
    ("vocab", "merges", "added"),
    [
        ({"a": "0"}, [], []),
        ({"a": -1}, [], []),
        ({"a": 4294967295}, [], []),
        ({"a": 2**32}, [], []),
        ({"a": 5, "b": 5}, [], []),
        (_LETTERS, [5], []),
        (_LETTERS, [["a"]], []),
        (_LETTERS, ["a b c"], []),
        (_LETTERS, [["a", "z"]], []),
        (_LETTERS, [], [{"id": "x", "content": 5}]),
    ],
)
def test_se_15_hostile_files_are_typed_errors(
    make_tokenizer: Any, vocab: Any, merges: Any, added: Any
) -> None:
    with pytest.raises(colibri.ModelError) as caught:
        Tokenizer.read(make_tokenizer(vocab, merges, added), 16)
    assert caught.value.code == "model_corrupt"
    assert "tokenizer.json" in caught.value.message


@pytest.mark.parametrize("token", [3, 17, 500_000, 2**32 - 1])
def test_se_15_added_tokens_outside_the_vocabulary(make_tokenizer: Any, token: int) -> None:
    entry = {"id": token, "content": "<x>", "single_word": False, "lstrip": False, "rstrip": False}
    path = make_tokenizer(_LETTERS, added=[{**entry, "normalized": False, "special": True}])
    with pytest.raises(colibri.ModelError) as caught:
        Tokenizer.read(path, 3)
    assert caught.value.code == "model_corrupt"


@pytest.mark.parametrize("text", ["", "[]", "null", "[" * 100_000, "{", '{"model":null}'])
def test_se_15_files_that_are_no_tokenizer(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(colibri.ModelError) as caught:
        Tokenizer.read(path)
    assert caught.value.code == "model_corrupt"


def test_se_15_the_model_part_is_missing(make_tokenizer: Any) -> None:
    with pytest.raises(colibri.ModelError, match="Model missing"):
        Tokenizer.read(make_tokenizer(_LETTERS, model=...))


def test_se_15_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as file:
        file.truncate(FILE_LIMIT + 1)
    with pytest.raises(colibri.ModelError, match="limit"):
        Tokenizer.read(path)


def test_other_kinds_of_tokenizers_are_refused_by_name(make_tokenizer: Any) -> None:
    words = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    with pytest.raises(colibri.ModelError, match="WordLevel") as caught:
        Tokenizer.read(make_tokenizer({}, model=words))
    assert caught.value.code == "model_unsupported"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(colibri.ModelError, match=r"tokenizer\.json") as caught:
        Tokenizer.read(tmp_path / "tokenizer.json")
    assert caught.value.code == "tokenizer_missing"
