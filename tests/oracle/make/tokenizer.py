"""The fixture tokenizer: byte-level BPE with 512 ids and the GLM split rule, and its references
for encoding, decoding, streaming and chat templates."""

import json
import shutil
from pathlib import Path
from typing import Any

import tokenizers
import transformers
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from .families.glm import STOP_IDS
from .files import dump_json
from .tokenizer_cases import (
    CHAT_CASES,
    CORPUS,
    ENCODE_CASES,
    INVALID_BYTES,
    STREAM_CASES,
)

VOCABULARY = 512
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
)
# Template files of the tokenizer folder and their sources.
TEMPLATES = {"chat_template.jinja": "glm5.jinja", "chat_template_glm46.jinja": "glm46.jinja"}

# `special` False marks an ordinary added token, kept when decoding with skip_special_tokens, as
# the published GLM tokenizers have it for the reasoning and tool tags.
SPECIAL_BEFORE = [
    "<|endoftext|>",
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "<sop>",
    "<eop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<|begin_of_image|>",
    "<|end_of_image|>",
    "<|begin_of_video|>",
    "<|end_of_video|>",
    "<|begin_of_audio|>",
    "<|end_of_audio|>",
    "<|code_prefix|>",
    "<|code_middle|>",
    "<|code_suffix|>",
]
ORDINARY = [
    "/nothink",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
]
ADDED_TOKENS = [
    *((token, True) for token in SPECIAL_BEFORE),
    *((token, False) for token in ORDINARY),
    ("<|begin_of_transcription|>", True),
]

# The split rule of GLM-4 and GLM-5: digits in runs of at most three.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def make_tokenizer(out: Path) -> None:
    """Trains the tokenizer and writes the folder `tokenizer`."""
    folder = out / "tokenizer"
    folder.mkdir(parents=True, exist_ok=True)
    train().save(str(folder / "tokenizer.json"))
    write_settings(folder)
    for target, source in TEMPLATES.items():
        shutil.copy(Path(__file__).parent / "templates" / source, folder / target)
    # The references come from the file, not from the object that was saved.
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    byte_ids = byte_token_ids(tokenizer)
    reference = {
        "made_with": {
            "tokenizers": tokenizers.__version__,
            "transformers": transformers.__version__,
        },
        "byte_token_ids": byte_ids,
        "encode": [encode_reference(tokenizer, name, text) for name, text in ENCODE_CASES],
        "decode": decode_references(tokenizer, byte_ids),
        "stream": [stream_reference(tokenizer, text) for text in STREAM_CASES],
        "chat": chat_references(tokenizer, folder),
    }
    dump_json(reference, folder / "reference.json")
    counts = ", ".join(f"{len(reference[key])} {key}" for key in ("encode", "decode", "chat"))
    print(f"[tokenizer] {counts} cases")


def train() -> Tokenizer:
    """Byte-level BPE on the small corpus, then the added tokens from id 481 on."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=True, trim_offsets=True, use_regex=True)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=True, trim_offsets=False, use_regex=True)
    base = VOCABULARY - len(ADDED_TOKENS)
    trainer = trainers.BpeTrainer(
        vocab_size=base,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if tokenizer.get_vocab_size() != base:
        raise ValueError("the corpus is too small for the vocabulary")
    for text, special in ADDED_TOKENS:
        token = AddedToken(text, normalized=False, special=special)
        add = tokenizer.add_special_tokens if special else tokenizer.add_tokens
        add([token])
    if [tokenizer.token_to_id(t) for t in ("<|endoftext|>", "<|user|>")] != STOP_IDS[:2]:
        raise ValueError("the stop ids of the configurations do not fit the tokenizer")
    return tokenizer


def write_settings(folder: Path) -> None:
    """tokenizer_config.json and generation_config.json."""
    base = VOCABULARY - len(ADDED_TOKENS)
    decoder = {
        str(base + position): {
            "content": text,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": special,
        }
        for position, (text, special) in enumerate(ADDED_TOKENS)
    }
    special_tokens = [text for text, special in ADDED_TOKENS if special]
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": decoder,
        "additional_special_tokens": special_tokens[1:],
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "do_lower_case": False,
        "model_max_length": 4096,
        "padding_side": "left",
        "remove_space": False,
    }
    generation = {
        "eos_token_id": STOP_IDS,
        "pad_token_id": STOP_IDS[0],
        "temperature": 1.0,
        "top_p": 0.95,
    }
    text = json.dumps(settings, indent=1, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1))


def byte_token_ids(tokenizer: Tokenizer) -> list[int]:
    """Id of the single-byte token of every byte value, through the byte-level alphabet: printable
    bytes stand for themselves, the others for the code points from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    characters = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in characters:
            characters[byte] = chr(256 + len(characters) - len(printable))
    ids = [tokenizer.token_to_id(characters[byte]) for byte in range(256)]
    if None in ids:
        raise ValueError("a byte has no token")
    return ids


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a text without any added framing."""
    return tokenizer.encode(text, add_special_tokens=False).ids


def encode_reference(tokenizer: Tokenizer, name: str, text: str) -> dict[str, Any]:
    """Ids, pieces and offsets of a text; decoding must give it back."""
    encoding = tokenizer.encode(text, add_special_tokens=False)
    decoded = tokenizer.decode(encoding.ids, skip_special_tokens=False)
    if decoded != text:
        raise ValueError(f"{name}: {decoded!r} is not {text!r}")
    return {
        "name": name,
        "text": text,
        "ids": encoding.ids,
        "tokens": encoding.tokens,
        "offsets": [list(offset) for offset in encoding.offsets],
        "decoded": decoded,
        "decoded_skip_special": tokenizer.decode(encoding.ids, skip_special_tokens=True),
    }


def decode_references(tokenizer: Tokenizer, byte_ids: list[int]) -> list[dict[str, Any]]:
    """Byte sequences that are not UTF-8, alone and cut off by a special token."""
    cases = []
    for sequence in INVALID_BYTES:
        ids = [byte_ids[byte] for byte in sequence]
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        cases.append({"bytes": sequence, "ids": ids, "decoded": decoded})
    letters = encode(tokenizer, "ab")
    for cut in ([byte_ids[0xF0], byte_ids[0x9F]], [byte_ids[0xE4]]):
        ids = [*letters, *cut, STOP_IDS[0], *letters]
        cases.append(
            {
                "bytes": None,
                "ids": ids,
                "decoded": tokenizer.decode(ids, skip_special_tokens=False),
                "decoded_skip_special": tokenizer.decode(ids, skip_special_tokens=True),
            }
        )
    return cases


def stream_reference(tokenizer: Tokenizer, text: str) -> dict[str, Any]:
    """The decoded prefix after every id."""
    ids = encode(tokenizer, text)
    prefixes = [tokenizer.decode(ids[: count + 1], skip_special_tokens=False) for count in range(len(ids))]
    return {"text": text, "ids": ids, "prefixes": prefixes}


def chat_references(tokenizer: Tokenizer, folder: Path) -> list[dict[str, Any]]:
    """Every conversation rendered with both templates."""
    fast = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    rows = []
    for template in TEMPLATES:
        source = (folder / template).read_text(encoding="utf-8")
        for name, messages, options in CHAT_CASES:
            variables = dict(options)
            add_generation_prompt = variables.pop("add_generation_prompt", True)
            tools = variables.pop("tools", None)
            text = fast.apply_chat_template(
                messages,
                chat_template=source,
                tools=tools,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **variables,
            )
            rows.append(
                {
                    "name": name,
                    "template": template,
                    "messages": messages,
                    "tools": tools,
                    "add_generation_prompt": add_generation_prompt,
                    "kwargs": variables,
                    "text": text,
                    "ids": encode(tokenizer, text),
                }
            )
    return rows
