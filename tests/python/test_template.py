"""Chat templates: equal to the reference renderings, every turn kept, strangers' templates bounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import colibri
import pytest
from colibri import template_sandbox
from colibri.template import ChatTemplate, prepare_messages
from colibri.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def reference(oracle: Path) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads((oracle / "tokenizer" / "reference.json").read_text("utf-8"))[
        "chat"
    ]
    return loaded


@pytest.fixture(scope="module")
def templates(oracle: Path) -> dict[str, ChatTemplate]:
    names = ("chat_template.jinja", "chat_template_glm46.jinja")
    return {name: ChatTemplate((oracle / "tokenizer" / name).read_text("utf-8"), name) for name in names}


def render(source: str, *messages: dict[str, Any], **variables: Any) -> str:
    return ChatTemplate(source, "test").render(messages or [{"role": "user", "content": "hi"}], **variables)


def test_renderings_and_ids_equal_the_reference(
    oracle: Path, reference: list[dict[str, Any]], templates: dict[str, ChatTemplate]
) -> None:
    tokenizer = Tokenizer.read(oracle / "tokenizer" / "tokenizer.json")
    assert len(reference) >= 20
    assert any(case["tools"] for case in reference)
    for case in reference:
        text = templates[case["template"]].render(
            case["messages"],
            tools=case["tools"],
            add_generation_prompt=case["add_generation_prompt"],
            **case["kwargs"],
        )
        assert text == case["text"], case["name"]
        assert tokenizer.encode(text) == case["ids"], case["name"]


def test_prompts_of_the_embedded_model(data: Path, demo_hf: Path) -> None:
    template, tokenizer = ChatTemplate.read(demo_hf), Tokenizer.read(demo_hf / "tokenizer.json", 2560)
    prompts = json.loads((data / "prompts.json").read_text("utf-8"))
    rendered = 0
    for prompt in prompts:
        assert all(tokenizer.encode(turn["prompt"]) == turn["prompt_ids"] for turn in prompt["turns"])
        if prompt["name"].startswith("raw_"):
            continue
        messages: list[dict[str, Any]] = []
        for user, turn in zip(prompt["user"], prompt["turns"], strict=True):
            messages.append({"role": "user", "content": user})
            assert template.render(messages, tools=prompt["tools"]) == turn["prompt"], prompt["name"]
            messages.append({"role": "assistant", "content": turn["text"].removesuffix("<|user|>")})
            rendered += 1
    assert rendered >= 30


# Cases.


def test_ct_01_a_missing_template_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "config.json").write_text('{"model_type": "glm_moe_dsa"}')
    with pytest.raises(colibri.ModelError, match=r"chat_template\.jinja") as caught:
        ChatTemplate.read(tmp_path)
    assert caught.value.code == "template_invalid"


@pytest.mark.parametrize(
    ("flag", "content", "expected"),
    [(..., "x", ""), (True, "x", ""), (False, "x", "-"), (False, "x-", ""), (False, "-", "")],
)
def test_ct_03_method_call_on_a_macro_result(flag: Any, content: str, expected: str) -> None:
    source = (
        "{%- macro show(c) -%}{{ c }}{%- endmacro -%}{%- set m = messages[0] -%}"
        '{{ "-" if (flag is defined and not flag and not show(m.content).endswith("-")) else "" }}'
    )
    variables = {} if flag is ... else {"flag": flag}
    assert render(source, {"role": "user", "content": content}, **variables) == expected


def test_ct_03_a_template_that_does_not_parse_names_its_line() -> None:
    with pytest.raises(colibri.ModelError) as caught:
        ChatTemplate("{{ 'a' }}\n{% if %}\n", "test")
    assert caught.value.code == "template_invalid"
    assert caught.value.why is not None
    assert "line 2" in caught.value.why


LOOP = (
    "{%- for m in messages -%}[{{ m.role }}]{{ m.content or '' }}"
    "{%- for tc in m.tool_calls or [] -%}{%- set f = tc.function or tc -%}<{{ f.name }}>"
    "{%- for k, v in f.arguments.items() -%}{{ k }}={{ v | tojson }};{%- endfor -%}"
    "{%- endfor -%}{%- endfor -%}"
)


def conversation(arguments: Any) -> list[dict[str, Any]]:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "sunny"},
        {"role": "user", "content": "thanks"},
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"city":"Rome","n":2}', 'city="Rome";n=2;'),
        ('{"z":1,"a":{"y":0,"b":null}}', 'z=1;a={"y": 0, "b": null};'),
        ({"n": 2, "city": "Köln"}, 'n=2;city="Köln";'),
        ("", ""),
        ("{}", ""),
        (None, ""),
    ],
)
def test_ct_04_arguments_are_a_mapping_in_their_order(arguments: Any, expected: str) -> None:
    text = render(LOOP, *conversation(arguments))
    assert text == f"[user]hi[assistant]<weather>{expected}[tool]sunny[user]thanks"


@pytest.mark.parametrize("arguments", ["{", "[1]", '"x"', 5, "nul"])
def test_ct_04_broken_arguments_name_the_message(arguments: Any) -> None:
    with pytest.raises(colibri.InvalidValue, match=r"messages\[1\]"):
        render(LOOP, *conversation(arguments))


def test_ct_06_turns_without_text_are_kept(templates: dict[str, ChatTemplate]) -> None:
    for template in templates.values():
        text = template.render(conversation('{"city":"Rome"}'), enable_thinking=False)
        assert text.count("<|user|>") == 2
        assert text.count("<|observation|>") == 1
        # The answer without text, and the opening of the next one.
        assert text.count("<|assistant|>") == 2
        assert "<tool_call>weather" in text
        assert "sunny" in text


THINKERS = [
    {"role": "assistant", "reasoning_content": "r1", "content": "a1"},
    {"role": "assistant", "content": "<think>r1</think>a1"},
    {"role": "assistant", "content": "\n<think>r1</think>a1", "reasoning_content": "r1"},
]


@pytest.mark.parametrize("thinker", THINKERS)
@pytest.mark.parametrize("last", [True, False])
def test_ct_07_one_thinking_block_a_turn(
    demo_hf: Path, templates: dict[str, ChatTemplate], thinker: dict[str, Any], last: bool
) -> None:
    question = {"role": "user", "content": "q"}
    messages = [question, thinker] if last else [question, thinker, question]
    clean = [{**THINKERS[0]} if message is thinker else message for message in messages]
    for template in [*templates.values(), ChatTemplate.read(demo_hf)]:
        text = template.render(messages, add_generation_prompt=not last, enable_thinking=True)
        turn = text.partition("<|assistant|>")[2].partition("<|user|>")[0]
        assert turn.count("<think>") == turn.count("</think>") == 1
        assert turn.count("a1") == 1
        # The template alone decides whether reasoning is shown; both spellings give the same.
        assert text == template.render(clean, add_generation_prompt=not last, enable_thinking=True)


def test_ct_07_the_reference_keeps_or_drops_reasoning(templates: dict[str, ChatTemplate]) -> None:
    question = {"role": "user", "content": "q"}
    glm5 = templates["chat_template.jinja"].render([question, THINKERS[0], question])
    assert "<|assistant|><think>r1</think>a1<|user|>" in glm5
    glm46 = templates["chat_template_glm46.jinja"].render([question, THINKERS[0], question])
    assert "<|assistant|>\n<think></think>\na1<|user|>" in glm46


def test_text_that_only_mentions_the_marks_is_left_alone(demo_hf: Path) -> None:
    template = ChatTemplate.read(demo_hf)
    text = template.render(
        [{"role": "user", "content": "q"}, {"role": "assistant", "content": "write </think> or <think>"}],
        add_generation_prompt=False,
    )
    assert text.endswith("<|assistant|><think></think>write </think> or <think>")


# What templates of published models rely on.


def test_blocks_are_trimmed() -> None:
    source = "{% for m in messages %}\n    {% if true %}\nx\n    {% endif %}\n{% endfor %}\n"
    assert render(source) == "x\n"


def test_loop_controls_and_generation_marks() -> None:
    skip, leave = "{% if i == 2 %}{% continue %}{% endif %}", "{% if i == 4 %}{% break %}{% endif %}"
    source = f"{{% for i in range(9) %}}{skip}{leave}{{{{ i }}}}{{% endfor %}}"
    assert render(source) == "013"
    assert render("a{% generation %}b{{ messages[0].content }}{% endgeneration %}c") == "abhic"


def test_json_is_written_as_it_is() -> None:
    tools = [{"name": "größe", "description": "a < b & 'c'"}]
    assert render("{{ tools[0] | tojson }}", tools=tools) == json.dumps(tools[0], ensure_ascii=False)
    assert render("{{ tools[0] | tojson(indent=2) }}", tools=tools) == json.dumps(
        tools[0], ensure_ascii=False, indent=2
    )


def test_special_tokens_and_the_date_are_there(tmp_path: Path) -> None:
    config = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>"},
        "chat_template": "{{ bos_token }}{{ eos_token }}",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert ChatTemplate.read(tmp_path).render([{"role": "user", "content": ""}]) == "<s></s>"
    assert render("{{ strftime_now('%Y') | length }}") == "4"


def test_templates_of_the_configuration_may_be_named(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer_config.json"
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    path.write_text(json.dumps({"chat_template": named}))
    assert ChatTemplate.read(tmp_path).render([{"role": "user", "content": ""}]) == "d"
    path.write_text(json.dumps({"chat_template": named[:1]}))
    with pytest.raises(colibri.ModelError, match="tokenizer_config"):
        ChatTemplate.read(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("file")
    assert ChatTemplate.read(tmp_path).render([{"role": "user", "content": ""}]) == "file"


def test_a_template_may_refuse_a_conversation() -> None:
    with pytest.raises(colibri.InvalidValue, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "messages",
    [[], "hi", [5], [{}], [{"role": 5}], [{"role": "user", "content": 5}], [{"role": "a", "tool_calls": [5]}],
     [{"role": "a", "tool_calls": [{"function": {"arguments": "{}"}}]}]],
)  # fmt: skip
def test_malformed_messages_are_refused(messages: Any) -> None:
    with pytest.raises(colibri.InvalidValue, match="messages"):
        prepare_messages(messages)


# A template comes from a stranger.


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ lipsum() }}",
        "{% include 'x' %}",
        "{{ 1 // 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ messages[0] | attr('__class__') }}{{ none.x.y }}",
    ],
)
def test_what_a_template_must_not_do_is_an_error(source: str) -> None:
    with pytest.raises(colibri.ModelError) as caught:
        render(source)
    assert caught.value.code == "template_invalid"


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% set tick = 1 %}{% for i in range(99999) %}{{ range(99999) | list | length }}{% endfor %}",
    ],
)
def test_time_is_bounded(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.setattr(template_sandbox, "TIME_LIMIT_S", 0.05)
    with pytest.raises(colibri.ModelError, match="longer than"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 1000000000 }}",
        "{{ [0] * 1000000000 }}",
        "{{ 2 ** 99999999 }}",
        "{% set n = namespace(s='aaaa') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{% set n = namespace(s='aaaa') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "{% set n = namespace(i=9) %}{% for i in range(99) %}{% set n.i = n.i * n.i %}{% endfor %}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 999999999) }}",
        "{{ 'x'.center(999999999) }}",
        "{{ 'x' | center(999999999) }}",
        "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
        "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
        "{{ ('b' * 1000000).join(['a'] * 1000000) }}",
        "{{ (['a'] * 1000000) | join('b' * 1000000) }}",
        "{{ (['a'] * 100000) | map('replace', 'a', 'b' * 16000000) | join }}",
        "{{ ('\\n' * 100000) | indent(100000) }}",
        "{{ tools | tojson(indent=1000000000) }}",
        "{% set s = 'x' * 1000000 %}{% set y %}{% for i in range(99) %}{{ s }}{% endfor %}{% endset %}",
        "{% set s = 'x' * 1000000 %}{% for i in range(99) %}{{ s }}{% endfor %}",
        "{% macro f(s) %}{{ s }}{{ s }}{{ s }}{{ s }}{% endmacro %}{{ f(f(f(f(f('x' * 100000))))) }}",
    ],
)
def test_size_is_bounded(source: str) -> None:
    with pytest.raises(colibri.ModelError) as caught:
        render(source)
    assert caught.value.code == "template_invalid"
    assert caught.value.why is not None
    assert "more than" in caught.value.why


def test_ordinary_text_work_is_not_in_the_way() -> None:
    long = "line of text\n" * 20_000
    source = (
        "{{ messages[0].content.replace('\\n', '\\r\\n').strip().split('\\r\\n') | join('\\n') | length }}"
    )
    assert render(source, {"role": "user", "content": long}) == str(len(long) - 1)
    assert render("{{ '%s: %d' % ('a', 5) }}{{ 'x'.center(3) }}{{ 'a' ~ 1 ~ none }}") == "a: 5 x a1None"
