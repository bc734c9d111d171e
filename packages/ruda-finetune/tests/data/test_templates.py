from __future__ import annotations

import pytest

from ruda_finetune import (
    CHATML_TRAINING_TEMPLATE,
    DataError,
    SFTCollator,
    TemplateError,
    chatml_training_template,
    generation_blocks,
    own_template_is_chatml,
)

PLAIN = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "lines"),
    [
        ("{% generation %}a{% endgeneration %}", [1]),
        ("\n{%- generation -%}\na{%-endgeneration-%}", [2]),
        ("{%generation%}a{%endgeneration%}\n{%+ generation %}b{% endgeneration %}", [1, 2]),
        (
            "{% if n %}{% for x in y %}{% generation %}a{% endgeneration %}{% endfor %}{% endif %}",
            [1],
        ),
        ("{# {% generation %} #}a", []),
        ("{{ '{% generation %}' }}", []),
        ("{% raw %}{% generation %}a{% endgeneration %}{% endraw %}", []),
        ("{% set generation = 1 %}{{ generation }}", []),
        ("{% for m in messages %}{% if m.x %}{% continue %}{% endif %}{{ m }}{% endfor %}", []),
        ("{% call(x) f() %}a{% endcall %}", []),
        (PLAIN, []),
    ],
)
def test_tag_is_parsed_not_searched(template, lines):
    assert generation_blocks(template) == lines


@pytest.mark.parametrize(
    "template", ["{% generation %}a", "{% if %}", "{{ messages[0] ", "{% unknown_tag %}"]
)
def test_template_that_does_not_parse(template):
    with pytest.raises(TemplateError, match=r"line 1"):
        generation_blocks(template)


def test_template_without_markers_says_what_to_add(tokenizer):
    for template in (PLAIN, "{# {% generation %} #}" + PLAIN):
        with pytest.raises(TemplateError) as caught:
            SFTCollator(tokenizer, chat_template=template)
        for word in ("{% generation %}", "{% endgeneration %}", "CHATML_TRAINING_TEMPLATE"):
            assert word in str(caught.value)


def test_tokenizer_without_template(tokenizer, chat):
    with pytest.raises(TemplateError, match=r"no chat template.*CHATML_TRAINING_TEMPLATE"):
        SFTCollator(tokenizer)([chat("q", "a")])


CHATS = [
    [("user", "q")],
    [("user", "a\n'b' \"c\" \\n {{ x }} é🚗"), ("assistant", "\n yes \n")],
    [("system", ""), ("user", "q"), ("assistant", "a")],
    [("system", "s"), ("user", "q"), ("assistant", "a"), ("user", "r"), ("assistant", "b")],
    [("user", "q"), ("system", "late"), ("assistant", "a"), ("tool", "t"), ("assistant", "b")],
    [("assistant", "first"), ("user", "q"), ("assistant", "a")],
]


@pytest.mark.parametrize("pairs", CHATS)
@pytest.mark.parametrize("prompt", [False, True])
def test_training_template_writes_what_smollm2_writes(smollm2, pairs, prompt):
    messages = [{"role": role, "content": text} for role, text in pairs]
    own, ours = (
        smollm2.apply_chat_template(
            messages, chat_template=template, add_generation_prompt=prompt, tokenize=False
        )
        for template in (None, CHATML_TRAINING_TEMPLATE)
    )
    assert ours == own
    if pairs[0][0] != "system":
        assert own.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, ")


def test_advice_knows_a_chatml_tokenizer(smollm2, tokenizer):
    assert own_template_is_chatml(smollm2)
    assert not own_template_is_chatml(smollm2, chatml_training_template("other"))
    with pytest.raises(TemplateError, match=r"same text as ruda_finetune.CHATML_TRAINING_TEMPLATE"):
        SFTCollator(smollm2).template
    with pytest.raises(ValueError, match="template"):
        own_template_is_chatml(tokenizer)


def test_default_system_message_is_a_choice(tokenizer, chat):
    def text(template):
        messages = chat("q", "a", system=None)["messages"]
        return tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)

    quoted = text(chatml_training_template("it's a \\ and\na line"))
    assert quoted.startswith(
        "<|im_start|>system\nit's a \\ and\na line<|im_end|>\n<|im_start|>user"
    )
    assert text(chatml_training_template(None)).startswith("<|im_start|>user\nq<|im_end|>\n")


def test_real_tokenizer_masks_exactly_the_answers(smollm2, chat):
    collator = SFTCollator(smollm2, chat_template=CHATML_TRAINING_TEMPLATE)
    answers = ["\nyes 🚗, été", '{"mpg": 33}\n']
    row = collator.encode(chat("hi", answers[0], "again", answers[1], system=None))
    parts, current = [], []
    for label in [*row.labels, -100]:
        if label != -100:
            current.append(label)
        elif current:
            parts.append(smollm2.decode(current))
            current = []
    assert parts == [answer + "<|im_end|>" for answer in answers]
    assert all(label in (-100, token) for label, token in zip(row.labels, row.input_ids))


@pytest.mark.parametrize("learn_prompts", [False, True])
def test_training_template_knows_its_roles(tokenizer, chat, learn_prompts):
    for template in (CHATML_TRAINING_TEMPLATE, chatml_training_template(None)):
        collator = SFTCollator(tokenizer, chat_template=template, train_on_prompt=learn_prompts)
        record = chat("q", "a", "r", "b")
        record["messages"].insert(3, {"role": "tool", "content": "4"})
        collator.encode(record)
        for role in ("alien", "User", "", "system "):
            record["messages"][3]["role"] = role
            with pytest.raises(DataError, match=r"cars, line 7: .*message 4 has the role|did you"):
                collator.encode(record, "cars, line 7")
