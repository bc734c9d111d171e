from __future__ import annotations

import pytest
import torch

from ruda_finetune import (
    CHATML_TRAINING_TEMPLATE,
    DataError,
    DataWarning,
    EncodedRow,
    SFTCollator,
    SFTDataset,
    TemplateError,
)

IM_START, IM_END = 1, 2


@pytest.fixture
def collator(tokenizer):
    return SFTCollator(tokenizer, chat_template=CHATML_TRAINING_TEMPLATE)


def labelled(tokenizer, batch, row):
    labels = batch["labels"][row]
    return tokenizer.decode(labels[labels != -100])


def test_batch_of_chats(tokenizer, collator, chat):
    batch = collator([chat("q", "a"), chat("question", "answer")])
    text = "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    expected = tokenizer(text + "a<|im_end|>\n", add_special_tokens=False)["input_ids"]
    prompt = len(tokenizer(text, add_special_tokens=False)["input_ids"])
    width = batch["input_ids"].shape[1]
    pad = width - len(expected)
    assert pad == len("question") - 1 + len("answer") - 1
    assert batch["input_ids"][0].tolist() == expected + [IM_END] * pad
    assert batch["attention_mask"][0].tolist() == [True] * len(expected) + [False] * pad
    assert batch["labels"][0].tolist() == [-100] * prompt + expected[prompt : prompt + 2] + [
        -100
    ] * (width - prompt - 2)
    assert labelled(tokenizer, batch, 1) == "answer<|im_end|>"
    dtypes = {name: tensor.dtype for name, tensor in batch.items()}
    assert dtypes == {
        "input_ids": torch.int64,
        "attention_mask": torch.bool,
        "labels": torch.int64,
    }


def test_pad_equal_to_stop_token_masks_padding_by_position(tokenizer, collator, chat):
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == IM_END
    batch = collator([chat("q", "a"), chat("q", "a much longer answer")])
    for row in range(2):
        labels = batch["labels"][row]
        kept = (labels != -100).nonzero().flatten()
        assert labels[kept[-1]] == IM_END  # the stop token is the last label
        assert not batch["attention_mask"][row][kept[-1] + 2 :].any()  # newline, then padding
        assert (labels[kept[-1] + 1 :] == -100).all()
    assert (batch["input_ids"][0][~batch["attention_mask"][0]] == IM_END).all()


def test_every_assistant_turn_ends_in_a_stop_label(tokenizer, collator, chat):
    batch = collator([chat("q", "a", "r", "b", "s", "c")])
    labels = batch["labels"][0].tolist()
    assert labels.count(IM_END) == 3
    assert labelled(tokenizer, batch, 0) == "a<|im_end|>b<|im_end|>c<|im_end|>"


def chatml(before="", inside="{{ message['content'] }}", after="<|im_end|>\\n"):
    return (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}{{ '\\n' }}"
        "{% if message['role'] == 'assistant' %}" + before + "{% generation %}" + inside +
        "{% endgeneration %}{{ '" + after + "' }}{% else %}"
        "{{ message['content'] + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
    )  # fmt: skip


@pytest.mark.parametrize("after", ["<|im_end|>\\n", " \\n<|im_end|>\\n"])
def test_stop_token_outside_the_markers_becomes_a_label(tokenizer, chat, after):
    collator = SFTCollator(tokenizer, chat_template=chatml(after=after))
    batch = collator([chat("q", "a", "r", "b")])
    stop = after.replace("\\n", "\n").rstrip("\n")
    assert labelled(tokenizer, batch, 0) == f"a{stop}b{stop}"


def test_newline_inside_the_markers_after_the_stop_token_is_fine(tokenizer, chat):
    inside = "{{ message['content'] + '<|im_end|>\\n' }}"
    collator = SFTCollator(tokenizer, chat_template=chatml(inside=inside, after=""))
    assert labelled(tokenizer, collator([chat("q", "a")]), 0) == "a<|im_end|>\n"


@pytest.mark.parametrize("after", ["\\n", "", "###\\n"])
def test_turn_without_stop_token_is_refused(tokenizer, chat, after):
    collator = SFTCollator(tokenizer, chat_template=chatml(after=after))
    with pytest.raises(TemplateError, match="turn 1 ends without a stop token") as caught:
        collator([chat("q", "answer")])
    assert "kept   'answer'" in str(caught.value) and "record 1" in str(caught.value)


def test_stop_token_ids_widen_what_counts(tokenizer, chat):
    hash_sign = tokenizer.convert_tokens_to_ids("#")
    collator = SFTCollator(
        tokenizer, chat_template=chatml(after="#\\n"), stop_token_ids=[hash_sign]
    )
    assert labelled(tokenizer, collator([chat("q", "answer")]), 0) == "answer#"


def test_unmarked_turn_is_an_error_that_shows_the_row(tokenizer, chat):
    # only the last turn is marked
    template = chatml().replace("== 'assistant'", "== 'assistant' and loop.last")
    with pytest.raises(TemplateError, match="marks 1 of 2 assistant turns") as caught:
        SFTCollator(tokenizer, chat_template=template)([chat("q", "first", "r", "second")])
    assert "masked '" in str(caught.value) and "kept   'second" in str(caught.value)
    never = chatml().replace("== 'assistant'", "== 'model'")
    with pytest.raises(TemplateError, match="marks 0 of 1 assistant turns") as caught:
        SFTCollator(tokenizer, chat_template=never)([chat("q", "first")])
    assert "kept" not in str(caught.value).split("learned:")[1]


def test_span_without_text_is_refused(tokenizer, chat):
    before, inside = "{{ message['content'] }}", "{{ '<|im_end|>' }}"
    collator = SFTCollator(tokenizer, chat_template=chatml(before, inside, ""))
    with pytest.raises(TemplateError, match="hold no text"):
        collator([chat("q", "a")])


def test_template_that_refuses_the_chat_is_a_data_error(tokenizer, chat):
    template = "{{ raise_exception('roles must alternate') }}" + CHATML_TRAINING_TEMPLATE
    with pytest.raises(DataError, match=r"record 2 of the batch.*roles must alternate"):
        SFTCollator(tokenizer, chat_template=template)(
            [{"input_ids": [1, 2], "labels": [1, 2]}, chat("q", "a")]
        )


def test_train_on_prompt_needs_no_markers(tokenizer, chat):
    template = chatml().replace("{% generation %}", "").replace("{% endgeneration %}", "")
    collator = SFTCollator(tokenizer, chat_template=template, train_on_prompt=True)
    batch = collator([chat("q", "a"), chat("q", "longer")])
    assert torch.equal(batch["labels"] != -100, batch["attention_mask"])
    kept = batch["attention_mask"]
    assert torch.equal(batch["labels"][kept], batch["input_ids"][kept])


def test_template_variables_and_tools_reach_the_template(tokenizer, chat):
    template = "{{ greeting }}{% if tools %}{{ tools[0]['name'] }}{% endif %}" + chatml()
    collator = SFTCollator(tokenizer, chat_template=template, template_kwargs={"greeting": "HELLO"})
    record = {**chat("q", "a"), "tools": [{"name": "TOOL"}]}
    assert tokenizer.decode(collator([record])["input_ids"][0]).startswith("HELLOTOOL")


PAIR = [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [8, 9], "labels": [8, 9]}]


def test_pretokenised_records_need_no_tokenizer():
    batch = SFTCollator(pad_token_id=0)(PAIR)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 9, 0]]
    assert batch["labels"].tolist() == [[-100, 6, 7], [8, 9, -100]]
    assert batch["attention_mask"].tolist() == [[True] * 3, [True, True, False]]


def test_pretokenised_masks_and_tensors():
    records = [
        {"input_ids": torch.tensor([5, 6, 7]), "assistant_masks": [0, 1, 0]},
        {"input_ids": [8, 9], "assistant_mask": [False, True], "attention_mask": [1, 1]},
    ]
    batch = SFTCollator(pad_token_id=0)(records)
    assert batch["labels"].tolist() == [[-100, 6, -100], [-100, 9, -100]]
    everything = SFTCollator(pad_token_id=0, train_on_prompt=True)([{"input_ids": [5, 6]}])
    assert everything["labels"].tolist() == [[5, 6]]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"input_ids": [5, 6]}, "without labels or assistant_masks"),
        ({"input_ids": []}, "input_ids is empty"),
        ({"input_ids": [5, -1], "labels": [5, 6]}, "input_ids holds -1"),
        ({"input_ids": [5, 2**31], "labels": [5, 6]}, "input_ids holds 2147483648"),
        ({"input_ids": [5, 6], "labels": [5, 2**31]}, "labels holds 2147483648"),
        ({"input_ids": [5, 6], "labels": [5]}, "labels has 1 entries for 2"),
        ({"input_ids": [5, 6], "labels": [5, -7]}, "wanted token ids or -100"),
        ({"input_ids": [[5, 6]], "labels": [5, 6]}, "flat list of integers"),
        ({"input_ids": [5, 6], "labels": [5, 6], "attention_mask": [1, 0]}, "unpadded"),
        ({"input_ids": [5, 6], "labels": [5, -100]}, "no token of this row is a label"),
        ({"input_ids": [5, 6], "labels": [-100, -100]}, "no token of this row is a label"),
        ("text", "wanted a mapping, got str"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "need a tokenizer"),
    ],
)
def test_bad_pretokenised_records(record, words):
    with pytest.raises(DataError, match=words):
        SFTCollator(pad_token_id=0)([PAIR[0], record])


def test_long_rows_are_counted():
    records = [{"input_ids": list(range(n)), "labels": list(range(n))} for n in (4, 9, 12)]
    with pytest.raises(DataError) as caught:
        SFTCollator(pad_token_id=0, max_length=8)(records)
    for words in ("2 of 3 rows", "max_length 8", "record 3", "12 tokens", "--truncate"):
        assert words in str(caught.value)
    assert SFTCollator(pad_token_id=0, max_length=12)(records)["labels"].shape == (3, 12)


def test_truncation_tells_what_is_lost_and_drops_rows_without_labels():
    ids = list(range(12))
    records = [
        {"input_ids": ids[:4], "labels": ids[:4]},
        {"input_ids": ids[:9], "labels": [-100] * 7 + ids[7:9]},  # one label within 8
        {"input_ids": ids, "labels": [-100] * 10 + ids[10:]},  # none within 8
    ]
    with pytest.warns(DataWarning) as caught:
        batch = SFTCollator(pad_token_id=0, max_length=8, truncate=True)(records)
    text = str(caught[0].message)
    for words in ("1 rows cut", "1 rows dropped", "13 tokens lost", "3 of them labels"):
        assert words in text
    assert batch["input_ids"].tolist() == [ids[:4] + [0] * 4, ids[:8]]
    assert batch["labels"].tolist() == [ids[:4] + [-100] * 4, [-100] * 7 + [7]]
    with pytest.raises(DataError, match="none of the 1 rows has a label within max_length 8"):
        SFTCollator(pad_token_id=0, max_length=8, truncate=True)(records[2:])


def test_a_label_at_the_first_position_alone_does_not_count():
    record = {"input_ids": [5, 6, 7], "labels": [5, -100, 7]}
    with pytest.raises(DataError, match="none of the 1 rows"):
        SFTCollator(pad_token_id=0, max_length=2, truncate=True)([record])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "no padding id"),
        ({"pad_token_id": -1}, "not be negative"),
        ({"pad_token_id": 0, "max_length": 1}, "at least 2"),
        ({"pad_token_id": 0, "truncate": True}, "needs a max_length"),
        ({"pad_token_id": 0, "template_kwargs": {"a": 1}}, "need a tokenizer"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(DataError, match=words):
        SFTCollator(**options)


def test_reserved_template_variables(tokenizer):
    with pytest.raises(DataError, match="may not hold tokenize"):
        SFTCollator(tokenizer, template_kwargs={"tokenize": False})
    with pytest.raises(DataError, match="empty batch"):
        SFTCollator(tokenizer)([])


def test_preview_shows_masked_and_kept_parts(collator, chat):
    lines = collator.preview(chat("q", "a", "r", "b")).splitlines()
    assert [line.split()[0] for line in lines] == ["masked", "kept"] * 2 + ["masked"]
    assert lines[1] == "  kept   'a<|im_end|>'"
    assert SFTCollator(pad_token_id=0).preview(PAIR[0]) == "  masked [5]\n  kept   [6, 7]"
    long = collator.preview(chat("q" * 5000, "a"))
    assert len(long) < 1000 and " … " in long


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"input_ids": [1, 60, 61], "labels": [1, 60, -100]}, "input_ids holds 61 at position 2"),
        ({"input_ids": [1, 2, 3], "labels": [-100, 99, 98]}, "labels holds 99 at position 1"),
        ({"input_ids": [1, 2**31 - 1], "assistant_masks": [0, 1]}, "input_ids holds 2147483647"),
        (EncodedRow([1, 70], [-100, 70]), "input_ids holds 70 at position 1"),
    ],
)
def test_ids_beyond_the_vocabulary(record, words):
    collator = SFTCollator(pad_token_id=0, vocabulary_size=61)
    good = {"input_ids": [1, 60], "labels": [-100, 60]}
    assert collator([good])["input_ids"].max() == 60
    with pytest.raises(DataError, match=rf"record 2: {words}.*vocabulary has 61 tokens, 0\.\.60"):
        SFTDataset([good, record], collator)


def test_tokenizer_that_knows_more_than_the_model(tokenizer, chat):
    """Its padding is not taken from beyond the model's vocabulary, its text is refused there."""
    size = len(tokenizer) - 1  # the last one is a byte of í
    collator = SFTCollator(tokenizer, chat_template=CHATML_TRAINING_TEMPLATE, vocabulary_size=size)
    collator.encode(chat("q", "an answer"))
    with pytest.raises(DataError, match=rf"the record: input_ids holds {size} \('Ń'\) at position"):
        collator.encode(chat("q", "sí"))
    with pytest.raises(DataError, match="no padding id"):
        SFTCollator(tokenizer, vocabulary_size=tokenizer.eos_token_id)
    with pytest.raises(DataError, match=r"pad_token_id must lie in the model's vocabulary, 0\.\.8"):
        SFTCollator(pad_token_id=9, vocabulary_size=9)
