"""The table of settings: everything that can be set about a run, one entry each.

``SETTINGS`` generates the flags of the command line, their ``COLIBRI_*`` twins, the keys of the
configuration file and ``docs/settings.md``. An entry only describes; values are looked up by
``colibri.config``.
"""

from __future__ import annotations

from dataclasses import dataclass

from colibri.setting_kinds import (
    BOOLEAN,
    COLOR,
    CONTEXT,
    COUNT,
    DRAFT,
    DRAFT_LENGTH,
    DURATION,
    GRAMMAR,
    GRAMMAR_MODE,
    IO,
    PATH,
    PENALTY,
    POSITIVE,
    PROBABILITY,
    PROGRESS,
    REASONING_EFFORT,
    REPEAT_PENALTY,
    SCHEMA,
    SEED,
    SHOW_THINKING,
    SIZE,
    STOP,
    TEMPERATURE,
    TEXT,
    WHITESPACE,
    Kind,
)

PREFIX = "COLIBRI_"
MODEL = "model and resources"
DOWNLOAD = "download"
GENERATION = "generation"
STRUCTURE = "structured output"
PROMPT = "prompt"
OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the table: all that flags, variables, the file and the documentation need to know."""

    name: str
    flags: tuple[str, ...]
    kind: Kind
    group: str
    help: str
    default: object = None
    # Shown where the default is not a plain value.
    default_text: str = ""
    # Flags that set the opposite of a boolean.
    negative: tuple[str, ...] = ()
    # Key in the configuration file; empty where the setting belongs to a single run.
    key: str = ""
    # The flag may be repeated and the value is a tuple.
    repeated: bool = False
    # Field of the sampling parameters, for which the model may bring a default.
    parameter: str = ""

    @property
    def variable(self) -> str:
        """Name of the twin in the environment, empty where the setting belongs to a single run."""
        return PREFIX + self.name.upper() if self.key else ""

    @property
    def flag(self) -> str:
        """The flag as it is named in messages: the first long one."""
        return next((flag for flag in self.flags if flag.startswith("--")), self.flags[0])

    @property
    def describe_default(self) -> str:
        """The built-in default in words."""
        if self.default_text:
            return self.default_text
        if self.default is None or self.default == ():
            return ""
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        return str(self.default)


def _kept(name: str, flags: str, kind: Kind, group: str, help: str, **rest: object) -> Setting:
    """A setting that has a twin in the environment and a key in the file."""
    rest.setdefault("key", name)
    return Setting(name, tuple(flags.split()), kind, group, help, **rest)  # type: ignore[arg-type]


def _once(name: str, flags: str, kind: Kind, group: str, help: str, **rest: object) -> Setting:
    """A setting of a single run: a flag and nothing else."""
    return Setting(name, tuple(flags.split()), kind, group, help, **rest)  # type: ignore[arg-type]


SETTINGS: tuple[Setting, ...] = (
    _kept(
        "model",
        "-m --model",
        TEXT,
        MODEL,
        "Model to use: a folder, a name from the configuration file, a name under models_dir, or "
        "OWNER/NAME in the Hugging Face cache.",
        key="default_model",
        default_text="the embedded demo",
    ),
    _kept(
        "ram",
        "--ram",
        SIZE,
        MODEL,
        "Memory for weights, caches and buffers: 20GB, 20GiB, 75%. Python itself takes about 25 MB more.",
        default="auto",
    ),
    _kept("ctx", "-c --ctx", CONTEXT, MODEL, "Context length in tokens.", default="auto"),
    _kept(
        "threads",
        "-t --threads",
        POSITIVE,
        MODEL,
        "Compute threads; more than the process may use are slower.",
        default_text="physical cores",
    ),
    _kept("io", "--io", IO, MODEL, "How weights are read from disk.", default="auto"),
    _kept("pull", "--pull", BOOLEAN, DOWNLOAD, "Download OWNER/NAME when it is not here.", default=False),
    _once(
        "revision",
        "--revision",
        TEXT,
        DOWNLOAD,
        "Branch, tag or commit of OWNER/NAME.",
        default_text="main",
    ),
    _kept(
        "offline",
        "--offline",
        BOOLEAN,
        DOWNLOAD,
        "Use what is here and not the network; HF_HUB_OFFLINE does the same.",
        default=False,
    ),
    _kept(
        "max_tokens",
        "-n --max-tokens --n-predict",
        POSITIVE,
        GENERATION,
        "Longest answer in tokens.",
        default=1024,
        parameter="max_tokens",
    ),
    _kept(
        "temp",
        "--temp --temperature",
        TEMPERATURE,
        GENERATION,
        "Sampling temperature; 0 always takes the likeliest token.",
        default=1.0,
        parameter="temperature",
    ),
    _kept(
        "top_p",
        "--top-p",
        PROBABILITY,
        GENERATION,
        "Keep the likeliest tokens that hold this much probability; 1 is off.",
        default=0.95,
        parameter="top_p",
    ),
    _kept(
        "top_k",
        "--top-k",
        COUNT,
        GENERATION,
        "Keep this many of the likeliest tokens; 0 is off.",
        default=0,
        parameter="top_k",
    ),
    _kept(
        "min_p",
        "--min-p",
        PROBABILITY,
        GENERATION,
        "Drop tokens below this share of the likeliest one; 0 is off.",
        default=0.0,
        parameter="min_p",
    ),
    _kept(
        "repeat_penalty",
        "--repeat-penalty",
        REPEAT_PENALTY,
        GENERATION,
        "Divide the score of tokens already seen; 1 is off.",
        default=1.0,
        parameter="repeat_penalty",
    ),
    _kept(
        "presence_penalty",
        "--presence-penalty",
        PENALTY,
        GENERATION,
        "Lower the score of tokens already seen.",
        default=0.0,
        parameter="presence_penalty",
    ),
    _kept(
        "frequency_penalty",
        "--frequency-penalty",
        PENALTY,
        GENERATION,
        "Lower the score of a token by how often it was seen.",
        default=0.0,
        parameter="frequency_penalty",
    ),
    _kept(
        "seed",
        "--seed",
        SEED,
        GENERATION,
        "Seed of the random numbers; the seed drawn is shown with -v and in --json.",
        default_text="random",
        parameter="seed",
    ),
    _kept(
        "stop",
        "--stop",
        STOP,
        GENERATION,
        "Stop before this text; may be repeated. The model's own stops always count.",
        default=(),
        repeated=True,
    ),
    _kept(
        "timeout",
        "--timeout",
        DURATION,
        GENERATION,
        "Stop after this time (90s, 10m, 1h30m) with exit code 124.",
        default_text="none",
    ),
    _kept(
        "think",
        "--think",
        BOOLEAN,
        GENERATION,
        "Let the model reason before it answers.",
        default=False,
        negative=("--no-think",),
    ),
    _kept(
        "reasoning_effort",
        "--reasoning-effort",
        REASONING_EFFORT,
        GENERATION,
        "How much reasoning to ask for; implies --think unless --no-think is given.",
        default_text="the model's own",
    ),
    _once(
        "grammar",
        "--grammar",
        GRAMMAR,
        STRUCTURE,
        "Only texts of this GBNF grammar: a file, - for standard input, or the grammar itself (with ::=).",
    ),
    _once("grammar_file", "--grammar-file", PATH, STRUCTURE, "The same, always a file."),
    _once(
        "json_schema",
        "-j --json-schema --schema",
        SCHEMA,
        STRUCTURE,
        "Only JSON of this schema: a file, - for standard input, or the schema itself (beginning with {).",
    ),
    _once("json_schema_file", "-jf --json-schema-file", PATH, STRUCTURE, "The same, always a file."),
    _once(
        "tools",
        "--tools",
        SCHEMA,
        STRUCTURE,
        "Functions the model may call, in the OpenAI format: a file, - for standard input, or the JSON list "
        "itself. Calls follow the text, one a line.",
    ),
    _once(
        "tool_choice",
        "--tool-choice",
        STOP,
        STRUCTURE,
        "auto, required (calls and no text), none (the model does not see the tools), or the name of a "
        "function.",
        default_text="auto",
    ),
    _once(
        "parallel_tool_calls",
        "--parallel-tool-calls",
        BOOLEAN,
        STRUCTURE,
        "Allow several calls in one answer.",
        default=True,
        negative=("--no-parallel-tool-calls",),
    ),
    _kept(
        "schema_lenient",
        "--schema-lenient",
        BOOLEAN,
        STRUCTURE,
        "Ignore what a schema asks for and cannot be enforced, and say so.",
        default=False,
    ),
    _kept(
        "json_whitespace",
        "--json-whitespace",
        WHITESPACE,
        STRUCTURE,
        "White space in JSON: none, or a space behind : and , and line breaks with an indent.",
        default="compact",
        default_text="compact; flexible with --grammar-mode draft",
    ),
    _kept(
        "grammar_mode",
        "--grammar-mode",
        GRAMMAR_MODE,
        STRUCTURE,
        "constrain: only what the grammar allows; draft: the model is free, forced text is only proposed.",
        default="constrain",
    ),
    _kept(
        "draft",
        "--draft",
        DRAFT,
        STRUCTURE,
        "Verify text that the grammar forces several tokens at a time: while it pays, never, or always.",
        default="auto",
    ),
    _kept(
        "draft_max",
        "--draft-max",
        DRAFT_LENGTH,
        STRUCTURE,
        "Longest draft in tokens, at most 63.",
        default=16,
    ),
    _kept("system", "-s --system", TEXT, PROMPT, "System message.", default_text="none"),
    _once(
        "file",
        "-f --file",
        PATH,
        PROMPT,
        "Put the text of this file before the prompt; may be repeated, - is standard input.",
        default=(),
        repeated=True,
    ),
    _once(
        "messages",
        "--messages",
        PATH,
        PROMPT,
        "Conversation so far: a JSON list of objects with role and content.",
    ),
    _once(
        "raw",
        "--raw",
        BOOLEAN,
        PROMPT,
        "Continue the text as it stands, without the chat template.",
        default=False,
    ),
    _kept(
        "show_thinking", "--show-thinking", SHOW_THINKING, OUTPUT, "Where reasoning goes.", default="stderr"
    ),
    _kept(
        "confirm_over",
        "--confirm-over",
        DURATION,
        OUTPUT,
        "On a terminal, ask before a prompt that takes longer than this to read.",
        default=300.0,
        default_text="5m",
    ),
    _kept(
        "no_stats",
        "--no-stats",
        BOOLEAN,
        OUTPUT,
        "Leave out the line of figures after an answer.",
        default=False,
    ),
    _once("json", "--json", BOOLEAN, OUTPUT, "One JSON object on standard output.", default=False),
    _kept("quiet", "-q --quiet", BOOLEAN, OUTPUT, "Only the answer, warnings and errors.", default=False),
    _kept("verbose", "-v --verbose", COUNT, OUTPUT, "Say more; -vv says still more.", default=0),
    _kept(
        "color",
        "--color",
        COLOR,
        OUTPUT,
        "Colour of messages and reports.",
        default="auto",
        negative=("--no-color",),
    ),
    _kept(
        "progress", "--progress", PROGRESS, OUTPUT, "How progress is shown on standard error.", default="auto"
    ),
)

BY_NAME: dict[str, Setting] = {setting.name: setting for setting in SETTINGS}
BY_VARIABLE: dict[str, Setting] = {setting.variable: setting for setting in SETTINGS if setting.key}
BY_KEY: dict[str, Setting] = {setting.key: setting for setting in SETTINGS if setting.key}
# Keys of the file that are no settings of a run.
SEARCH_KEY = "models_dir"
MODELS_KEY = "models"
# What may be set for one model: its folder, and how it is run.
MODEL_KEYS: frozenset[str] = frozenset(
    {"path"}
    | {
        setting.key
        for setting in SETTINGS
        if setting.key and setting.group in (MODEL, GENERATION, STRUCTURE, PROMPT) and setting.name != "model"
    }
)
