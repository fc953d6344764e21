"""Inputs of the tokenizer references: training corpus, texts, byte sequences, conversations."""

# Small, but with the scripts, spacing and code that the split rule treats differently.
CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog does not mind at all.",
    "A mixture of experts routes every token to a few of its experts; the router decides which.",
    "In the beginning there was a tensor, and the tensor was without form, and it was loaded.",
    "the thing that there is is the thing that they then think they have; the other is another",
    "It's what we've got, and they'll say it isn't enough; I'm sure you're right, he'd agree.",
    "def forward(self, hidden_states, position_ids):\n    return self.norm(hidden_states)\n",
    "for (int i = 0; i < n; i++) { sum += x[i] * y[i]; }\n\treturn sum;\n",
    '{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}',
    "1 2 3 10 100 1000 1024 2048 4096 65536 3.14159 2.71828 1e-5 0x1F 2026-11-29",
    "你好，世界。今天天气很好，我们一起去公园。专家混合模型把每个词元送给几位专家。",
    "안녕하세요. 오늘 날씨가 좋습니다. 모델은 토큰을 몇 명의 전문가에게 보냅니다.",
    "こんにちは、世界。今日はいい天気ですね。",
    "Größe, café, naïve, São Paulo, Ελληνικά, Русский язык, العربية, हिन्दी",
    "  indented\n    more\n\n\nblank lines   and   spaces \t tabs\r\n",
] * 3

ENCODE_CASES = [
    ("plain", "The router decides which expert thinks about the token."),
    ("leading_space", " leading space"),
    ("two_leading_spaces", "  two leading"),
    ("trailing_space", "trailing "),
    ("only_spaces", "     "),
    ("newlines", "a\n\n\nb\r\nc\n"),
    ("tabs", "\tx\t\ty"),
    ("empty", ""),
    ("space_newline", " \n \n"),
    ("nbsp", "a\u00a0b"),
    ("contractions", "It's I'M you'RE we'll they'Ve"),
    ("underscore", "hidden_states_2"),
    ("numbers", "1234567890 12 123 1234 3.14159 0x1F"),
    ("number_letters", "abc123def4567"),
    ("fullwidth_digits", "１２３４"),
    ("superscripts", "x² y³ ½"),
    ("cjk", "你好，世界。今天天气很好"),
    ("cjk_latin", "使用model测试"),
    ("korean", "안녕하세요 토큰"),
    ("korean_jamo_decomposed", "\u1112\u1161\u11ab\u1100\u1173\u11af"),
    ("japanese", "こんにちは、世界"),
    ("arabic", "العربية"),
    ("hindi", "हिन्दी"),
    ("thai", "ภาษาไทย"),
    ("combining_decomposed", "cafe\u0301 n\u0303"),
    ("combining_composed", "café ñ"),
    ("combining_alone", "\u0301\u0301"),
    ("emoji", "👍 🎉"),
    ("emoji_zwj", "👨‍👩‍👧‍👦"),
    ("emoji_skin_flag", "👋🏽🇰🇷"),
    ("variation_selector", "❤️"),
    ("zero_width", "a\u200bb\ufeffc"),
    ("math", "∑ᵢ xᵢ² ≤ ∞"),
    ("punctuation", "...!!!???---***"),
    ("quotes", "“curly” ‘single’"),
    ("code", "def f(x):\n    return x + 1\n"),
    ("json", '{"a": [1, 2], "b": null}'),
    ("replacement_char", "\ufffd"),
    ("control", "\x00\x01\x7f"),
    ("supplementary", "𝔘𝔫𝔦 𠮷"),
    ("prefix_tokens", "[gMASK]<sop><|user|>\nhello<|assistant|>"),
    ("special_inside_word", "foo<|endoftext|>bar"),
    ("special_adjacent", "<think></think>"),
    ("special_with_spaces", " <think> x </think> "),
    ("special_almost", "<|endoftext| > <thinks>"),
    ("special_nested", "<<|user|>>"),
    ("nothink", "hello/nothink"),
    (
        "tool_call",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>",
    ),
    ("mixed", "GLM-5.2: 744B / 40B 활성 파라미터, 你好 👋 <|observation|> done."),
]

# Not UTF-8; given as byte tokens. A decoder emits U+FFFD where the library does.
INVALID_BYTES = [
    [0x80],
    [0xFF],
    [0xC3],
    [0xC3, 0x28],
    [0xE4, 0xBD],
    [0xE4, 0xBD, 0x41],
    [0xF0, 0x9F],
    [0xF0, 0x9F, 0x91],
    [0xF0, 0x9F, 0x91, 0x8D],
    [0xED, 0xA0, 0x80],
    [0xF5, 0x80, 0x80, 0x80],
    [0x41, 0xC0, 0x80, 0x42],
    [0xE2, 0x28, 0xA1],
    [0xF0, 0x28, 0x8C, 0xBC],
    [0xFE, 0xFE, 0xFF, 0xFF],
]

STREAM_CASES = ("👨‍👩‍👧‍👦 ok", "안녕하세요", "cafe\u0301 你好")

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "天气 / weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}

# (name, messages, template variables)
CHAT_CASES = [
    ("one_user", [{"role": "user", "content": "hi"}], {}),
    (
        "system_user",
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "안녕 👋"}],
        {},
    ),
    ("no_think", [{"role": "user", "content": "hi"}], {"enable_thinking": False}),
    ("effort_high", [{"role": "user", "content": "hi"}], {"reasoning_effort": "high"}),
    (
        "multi_turn",
        [
            {"role": "user", "content": "2+2?"},
            {"role": "assistant", "content": "4", "reasoning_content": "add them"},
            {"role": "user", "content": "and 3+3?"},
        ],
        {},
    ),
    (
        "multi_turn_clear",
        [
            {"role": "user", "content": "2+2?"},
            {"role": "assistant", "content": "4", "reasoning_content": "add them"},
            {"role": "user", "content": "and 3+3?"},
        ],
        {"clear_thinking": True},
    ),
    (
        "inline_think",
        [
            {"role": "user", "content": "2+2?"},
            {"role": "assistant", "content": "<think>\nadd\n</think>\n\n4"},
            {"role": "user", "content": "ok"},
        ],
        {},
    ),
    (
        "content_parts",
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "part one, "},
                    {"type": "text", "text": "part two"},
                ],
            }
        ],
        {},
    ),
    ("tools", [{"role": "user", "content": "weather in Paris?"}], {"tools": [WEATHER]}),
    (
        "tool_round_trip",
        [
            {"role": "user", "content": "weather in Paris and 东京?"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {
                        "type": "function",
                        "id": "c1",
                        "function": {
                            "name": "get_weather",
                            "arguments": {"city": "Paris", "days": 2},
                        },
                    },
                    {
                        "type": "function",
                        "id": "c2",
                        "function": {
                            "name": "get_weather",
                            "arguments": {
                                "city": "东京",
                                "opts": {"unit": "C", "list": [1, None, True]},
                            },
                        },
                    },
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "sunny, 25°C"},
            {"role": "tool", "tool_call_id": "c2", "content": "雨"},
        ],
        {"tools": [WEATHER]},
    ),
    (
        "no_generation_prompt",
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        {"add_generation_prompt": False},
    ),
]
