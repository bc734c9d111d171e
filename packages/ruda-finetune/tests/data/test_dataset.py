from __future__ import annotations

import pytest

from ruda_finetune import (
    CHATML_TRAINING_TEMPLATE,
    DataError,
    DataWarning,
    SFTCollator,
    SFTDataset,
)


@pytest.fixture
def make(tokenizer, write):
    def build(records, **options):
        collator = SFTCollator(tokenizer, chat_template=CHATML_TRAINING_TEMPLATE, **options)
        return SFTDataset.from_file(write("train.jsonl", records), collator)

    return build


def test_report_counts_tokens_and_labels(make, chat):
    texts = ["a", "abc", "abcde", "abcdefg"]
    dataset = make([chat("q", text) for text in texts])
    overhead = len(dataset[0]) - 1
    report = dataset.report
    assert (report.rows, report.min_tokens, report.max_tokens) == (4, overhead + 1, overhead + 7)
    assert report.median_tokens == overhead + 4
    assert report.supervised_tokens == sum(len(text) + 1 for text in texts)  # stop tokens too
    assert report.total_tokens == sum(dataset.lengths) == 4 * overhead + 16
    assert str(report).startswith(f"4 rows, {overhead + 1}/{overhead + 4}/{overhead + 7} tokens")
    assert report.losses == ""


def test_errors_name_the_line(make, chat):
    with pytest.raises(DataError, match=r"train\.jsonl, line 2, has \d+ tokens"):
        make([chat("q", "a"), chat("q" * 90, "a")], max_length=80)


def test_truncated_rows_keep_their_places(make, chat):
    # max length shorter than every prompt, then shorter than some of them
    records = [chat("q" * 90, "lost"), chat("q", "kept"), chat("q" * 90, "lost")]
    with pytest.raises(DataError, match="none of the 3 rows has a label within max_length 20"):
        make(records, max_length=20, truncate=True)
    with pytest.warns(DataWarning, match="2 rows dropped"):
        dataset = make(records, max_length=90, truncate=True)
    assert len(dataset) == 1 and dataset.where(0) == "train.jsonl, line 2"
    assert dataset.record(0) == records[1]
    assert dataset.report.dropped_rows == 2
    assert dataset.report.lost_tokens == 2 * (len(dataset[0]) + 89)
    assert "kept   'kept<|im_end|>'" in dataset.preview(0)


def test_fingerprint_follows_tokens_and_labels(make, chat, tokenizer):
    one = make([chat("q", "a"), chat("r", "b")]).fingerprint
    assert make([chat("q", "a"), {**chat("r", "b"), "id": 3}]).fingerprint == one
    assert make([chat("r", "b"), chat("q", "a")]).fingerprint != one
    assert make([chat("q", "a"), chat("r", "c")]).fingerprint != one
    assert make([chat("q", "a"), chat("r", "b")], train_on_prompt=True).fingerprint != one


def test_rows_are_batches_already_encoded(make, chat):
    dataset = make([chat("q", "a"), chat("r", "bc")])
    batch = dataset.collator([dataset[0], dataset[1]])
    assert batch["labels"].shape == (2, len(dataset[1]))
    assert batch["input_ids"][1].tolist() == list(dataset[1].input_ids)


def test_no_records():
    with pytest.raises(DataError, match="no records"):
        SFTDataset([], SFTCollator(pad_token_id=0))
