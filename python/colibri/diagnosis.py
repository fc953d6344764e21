"""Checks of machine and model that change nothing, each with what to do about it.

Owns `doctor`: the core's checks, and those of what travels with the weights. What must hold: nothing is
written; a check that fails, or cannot be made, never keeps another one from being made; everything that is
not in order comes with a next step.
"""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from colibri import engine
from colibri.engine import CancelToken, Options, ProgressCallback, Size
from colibri.errors import ColibriError, invalid_value
from colibri.files import read_file
from colibri.json_file import read_json_object
from colibri.model_folder import folder_of
from colibri.results import Check, DoctorReport
from colibri.template import ChatTemplate, Message
from colibri.tokenizer import FILE_LIMIT, Tokenizer

TOKENIZER: Final = "model.tokenizer"
TEMPLATE: Final = "model.template"
_LAST_OF_FOLDER: Final = "model.tensors"

# One line of each script and of each kind of text that meets a tokenizer: letters with and without accents,
# scripts without spaces, right to left, combining marks, characters of four bytes, numbers, code, spaces.
SAMPLES: Final = (
    "The quick brown fox jumps over the lazy dog.",
    "Don't you've we'll I'm HE'S they'd",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Voix ambiguë d’un cœur qui préfère les jattes de kiwis.",
    "El pingüino Wenceslao hizo kilómetros; ¿y la cigüeña? ¡Sí!",
    "Pchnąć w tę łódź jeża lub ośm skrzyń fig.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Árvíztűrő tükörfúrógép",
    "Pijamalı hasta yağız şoföre çabucak güvendi.",
    "Tôi có thể ăn thuỷ tinh mà không hại gì.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Гей, хлопці, не вспію — на ґанку ваша файна їжа знищується!",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "נקסט: דג סקרן שט בים מאוכזב ולפתע מצא חברה",
    "صِف خَلقَ خَودٍ كَمِثلِ الشَمسِ إِذ بَزَغَت",
    "گچ پژوهش و ژرفای دانش",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश",
    "আমি কাঁচ খেতে পারি, তাতে আমার কোনো ক্ষতি হয় না।",
    "நான் கண்ணாடி சாப்பிடுவேன், அதனால் எனக்கு ஒரு கேடும் வராது.",
    "నేను గాజు తినగలను",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า",
    "ကျွန်တော် မှန်စားနိုင်တယ်။",
    "ខ្ញុំអាចញុំកញ្ចក់បាន",
    "ღვინო და პური, ქართული ენა",
    "Կրնամ ապակի ուտել և ինծի անհանգիստ չըներ։",
    "ሰው እንደ ቤቱ እንጅ እንደ ጉረቤቱ አይተዳደርም።",
    "天地玄黃，宇宙洪荒。日月盈昃，辰宿列張。",
    "我能吞下玻璃而不伤身体。",
    "いろはにほへと ちりぬるを 色は匂へど 散りぬるを",
    "カタカナとﾊﾝｶｸと全角ＡＢＣ１２３",
    "다람쥐 헌 쳇바퀴에 타고파",
    "བོད་སྐད་ཀྱི་ཡི་གེ",
    "😀 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 👍🏽 ❤️",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𓀀 🜁",
    "0123456789 3.14159 1,234,567 0xDEADBEEF 1e-10 ½ ²",
    "∀x ∈ ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β → ∑ᵢ xᵢ ≤ ∫ f dx",
    "def f(x):\n    return {k: v for k, v in x.items()}  # done\n",
    "#include <stdio.h>\nint main(void)\t{ return a[i] && *p != '\\0'; }\r\n",
    '{"key": [1, null, true, "\\u00e9"], "path": "C:\\\\temp"}',
    "SELECT * FROM t WHERE a >= 'x' -- 100 %\n\n\n| a | b |\n|---|---|",
)

# How a sample is put into a text; spaces and line ends are what tokenizers treat most unalike.
FRAMES: Final = ("{}", " {}", "\n\n  {}  ", "7{}7\r\n\t", "“{}”…—")

# What the text of a rendered tool call holds -> the name of the format. The first that fits counts.
TOOL_CALLS: Final = (
    (("<tool_call>", "<arg_key>"), "glm"),
    (("<tool_call>", "<function="), "qwen-xml"),
    (("<tool_call>", '"name"'), "hermes"),
    (("<|tool_calls_section_begin|>",), "kimi"),
    (("<｜tool▁calls▁begin｜>",), "deepseek"),
    (("<｜DSML｜",), "deepseek-dsml"),
    (("<minimax:tool_call>",), "minimax"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<|channel|>",), "harmony"),
    (("<|python_tag|>",), "llama"),
)

# A name that no template has in its own text.
_TOOL: Final = "colibri_probe_tool"
_TALK: Final[Sequence[Message]] = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the weather in Quito?"},
    {"role": "assistant", "content": "I will look."},
    {"role": "user", "content": "Do."},
)
_CALL: Final = {
    "id": "call_1",
    "type": "function",
    "function": {"name": _TOOL, "arguments": {"city": "Quito", "days": 2}},
}
_TOOL_TALK: Final[Sequence[Message]] = (
    *_TALK,
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "call_1", "name": _TOOL, "content": "Sunny."},
)
_TOOLS: Final = (
    {
        "type": "function",
        "function": {
            "name": _TOOL,
            "description": "Weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    },
)


def doctor(
    path: str | os.PathLike[str] | None = None,
    *,
    ram: Size = "auto",
    ctx: int | str = "auto",
    threads: int | None = None,
    io: str = "auto",
    deep: bool = False,
    on_progress: ProgressCallback | None = None,
    cancel: CancelToken | None = None,
) -> DoctorReport:
    """Checks this machine, and a model; nothing is changed.

    Args:
        path: a model's folder, `demo`, or None for the machine alone. The folder may be damaged or absent.
        ram: as `colibri.load` takes it, as are `ctx`, `threads` and `io`: whether the model fits is a check.
        ctx: see `ram`.
        threads: see `ram`.
        io: see `ram`.
        deep: whether all weights are read and compared with their digests.
        on_progress: `f("verify", done, total)` in bytes; returning False stops.
        cancel: a token that stops it.

    Raises:
        InvalidValue: an argument is not understood.
        Cancelled: it was stopped.
    """
    if not isinstance(deep, bool):
        raise invalid_value("deep", deep, "True or False")
    folder = None if path is None else folder_of(path)
    options = Options(ram, ctx, threads, io)
    watcher = engine.watch((cancel,) if cancel is not None else (), None, on_progress)
    checks = list(engine.doctor(None if folder is None else str(folder), options, deep, watcher))
    if folder is not None:
        # Beside the other checks of what the folder holds; the drive and the digests come last.
        names = [check.id for check in checks]
        place = names.index(_LAST_OF_FOLDER) + 1 if _LAST_OF_FOLDER in names else len(names)
        checks[place:place] = text_checks(folder)
    return DoctorReport(None if folder is None else str(folder), tuple(checks))


def text_checks(folder: Path) -> list[Check]:
    """The checks of tokenizer and chat template of a folder."""
    if not folder.is_dir():
        fix = "give the folder of a model"
        return [Check(name, "skip", "not checked: there is no folder", fix) for name in (TOKENIZER, TEMPLATE)]
    return [
        _made(TOKENIZER, lambda: _tokenizer(folder)),
        _made(TEMPLATE, lambda: _template(folder)),
    ]


def _made(name: str, make: Callable[[], Check]) -> Check:
    """A check; whatever goes wrong while it is made is what it found."""
    try:
        return make()
    except ColibriError as fault:
        text = fault.args[1] + (f": {fault.args[2]}" if fault.args[2] else "")
        return Check(name, "fail", text, fault.args[3] or "take the file from the original model")
    except OSError as fault:
        return Check(name, "fail", *_unreadable(fault))
    except Exception as fault:
        text = f"the check itself failed: {type(fault).__name__}: {fault}"
        return Check(name, "fail", text, "this is a bug in colibri; please report this line")


def _unreadable(fault: OSError) -> tuple[str, str]:
    """What the system says about a file that it does not let us read, and the next step."""
    place = str(fault.filename or "a file")
    text = f"{place} cannot be read: {fault.strerror or fault}"
    if fault.errno in (errno.EACCES, errno.EPERM):
        return text, f"allow it:  chmod u+r {shlex.quote(place)}"
    if fault.errno == errno.EIO:
        return text, "check the drive (dmesg | tail, smartctl -a), and copy the file from the original model"
    return text, "take the file from the original model"


def _open(path: Path, limit: int) -> None:
    """Raises the system's own error for a file that is there and cannot be read."""
    try:
        read_file(path, limit)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as fault:
        raise type(fault)(fault.errno, fault.strerror, str(path)) from None


def _vocabulary(folder: Path) -> int | None:
    """Number of logits by the headers, else by `config.json`, or None."""
    try:
        size = engine.inspect(str(folder))["model"]["vocab_size"]
    except ColibriError:
        try:
            size = read_json_object(folder / "config.json").get("vocab_size")
        except ColibriError:
            return None
    return size if isinstance(size, int) and not isinstance(size, bool) else None


def _tokenizer(folder: Path) -> Check:
    if not (folder / "tokenizer.json").exists():
        text = "no tokenizer.json: text cannot be turned into tokens; logits and conversion work"
        return Check(TOKENIZER, "warn", text, "copy tokenizer.json from the original model")
    _open(folder / "tokenizer.json", FILE_LIMIT)
    vocabulary = _vocabulary(folder)
    tokenizer = Tokenizer.read(folder / "tokenizer.json", vocabulary)
    texts = [frame.format(sample) for sample in SAMPLES for frame in FRAMES]
    changed = [text for text in texts if tokenizer.decode(tokenizer.encode(text)) != text]
    of = "" if vocabulary is None else f" for {vocabulary:,} logits"
    size = f"{tokenizer.size:,} tokens{of}"
    if changed:
        text = f"{size}; {len(changed)} of {len(texts)} texts come back changed, such as {changed[0]!r}"
        return Check(TOKENIZER, "fail", text, "take tokenizer.json from the original model")
    return Check(TOKENIZER, "ok", f"{size}; round trip of {len(texts)} texts")


def _template(folder: Path) -> Check:
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        _open(folder / name, FILE_LIMIT)
    inline = read_json_object(folder / "tokenizer_config.json").get("chat_template")
    if inline is None and not (folder / "chat_template.jinja").exists():
        text = "no chat template: neither chat_template.jinja nor one in tokenizer_config.json; chat needs it"
        return Check(TEMPLATE, "warn", text, "copy chat_template.jinja from the original model")
    template = ChatTemplate.read(folder)
    plain = template.render(_TALK)
    lost = [str(message["role"]) for message in _TALK if str(message["content"]) not in plain]
    if lost:
        text = f"it renders, but leaves out what {', '.join(dict.fromkeys(lost))} says"
        return Check(TEMPLATE, "warn", text, "take chat_template.jinja from the original model")
    try:
        called = template.render(_TOOL_TALK, tools=_TOOLS)
    except ColibriError as fault:
        why = fault.args[2] or fault.args[1]
        text = f"it renders, but not with tool calls: {why}"
        return Check(TEMPLATE, "warn", text, "take chat_template.jinja from the original model")
    return Check(TEMPLATE, "ok", f"renders; {tool_call_format(called)}")


def tool_call_format(rendered: str) -> str:
    """The format of tool calls in a rendered conversation, in words."""
    if _TOOL not in rendered:
        return "no tool calls"
    known = (name for marks, name in TOOL_CALLS if all(mark in rendered for mark in marks))
    name = next(known, None)
    return "tool calls in a format of its own" if name is None else f"tool-call format {name}"
