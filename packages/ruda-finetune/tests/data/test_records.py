from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ruda_finetune import DataError, read_records
from ruda_finetune.data import validate_record

GOOD = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}


def test_jsonl_numbers_are_line_numbers(write):
    lines = f"\n{json.dumps(GOOD)}\r\n\n  {json.dumps({**GOOD, 'id': 7})}\n"
    file = read_records(write("cars.jsonl", lines))
    assert len(file) == 2 and file[1]["id"] == 7
    assert file.where(0) == "cars.jsonl, line 2" and file.where(1) == "cars.jsonl, line 4"
    assert [record.get("id") for record in file] == [None, 7]


def test_json_list_numbers_are_record_numbers(write):
    file = read_records(write("cars.json", json.dumps([GOOD, GOOD, GOOD], indent=2)))
    assert len(file) == 3 and file.where(2) == "cars.json, record 3"


def test_content_decides_not_the_name(write):
    assert read_records(write("a.json", [GOOD, GOOD])).unit == "line"
    assert read_records(write("b.jsonl", json.dumps([GOOD]))).unit == "record"


def test_byte_order_mark_and_unusual_line_separators(write):
    text = json.dumps(
        {**GOOD, "note": "a\u2028b\x85c"}, ensure_ascii=False
    )  # not line ends in JSONL
    file = read_records(write("a.jsonl", ("\ufeff" + text + "\n").encode()))
    assert len(file) == 1 and file[0]["note"] == "a\u2028b\x85c"


def test_slice_keeps_places(write):
    part = read_records(write("a.jsonl", [GOOD, GOOD, GOOD]))[1:]
    assert len(part) == 2 and part.where(0) == "a.jsonl, line 2"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["is empty"]),
        (" \n\t\n", ["is empty"]),
        ("[]", ["empty list"]),
        (json.dumps(GOOD) + "\n{'a': 1}\n", ["line 2", "bad JSON"]),
        (json.dumps(GOOD) + "\n[1, 2]\n", ["line 2", "wanted an object", "a list"]),
        ("hello\n", ["line 1", "bad JSON"]),
        (json.dumps([GOOD, GOOD])[:-3], ["record 2", "line 1", "bad JSON"]),
        (
            "[\n" + json.dumps(GOOD) + ",\n" + json.dumps(GOOD) + ",\n{bad}\n]",
            ["line 4", "record 3"],
        ),
        (json.dumps([GOOD, 3]), ["record 2", "wanted an object", "a number"]),
        (json.dumps({"data": [GOOD]}, indent=1), ["one JSON object", "'data'"]),
        (b'{"a": 1}\n{"b": "\xff"}\n', ["line 2", "UTF-8", "0xff"]),
    ],
)
def test_files_that_cannot_be_read(write, content, words):
    with pytest.raises(DataError) as caught:
        read_records(write("train.jsonl", content))
    for word in [*words, "train.jsonl"]:
        assert word in str(caught.value)


def test_missing_file_names_near_ones(write):
    write("train.jsonl", [GOOD])
    path = write("other.txt", "x").parent / "trian.jsonl"
    with pytest.raises(DataError, match=r"no such file.*did you mean train\.jsonl"):
        read_records(path)
    with pytest.raises(DataError, match=r"folder .* does not exist"):
        read_records(path.parent / "nowhere" / "train.jsonl")


def turn(role, content):
    return {"role": role, "content": content}


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"text": "hello"}, ["neither messages nor input_ids", "'text'"]),
        ({}, ["no keys"]),
        ({"conversations": []}, ["rename 'conversations' to 'messages'"]),
        ({"message": []}, ["rename 'message' to 'messages'"]),
        ({"messages": []}, ["non-empty list", "a list (empty)"]),
        ({"messages": "hi"}, ["non-empty list", "text"]),
        ({"messages": ["hi"]}, ["message 1", "a role"]),
        ({"messages": [turn("user", "q")]}, ["no assistant message", "user"]),
        ({"messages": [turn("user", "q"), turn("assistant", " \n")]}, ["assistant text is empty"]),
        (
            {"messages": [turn("assistant", "a"), turn("assistant", "")]},
            ["assistant text is empty", "message 2"],
        ),
        ({"messages": [turn("user", None), turn("assistant", "a")]}, ["message 1 (user)"]),
        ({"messages": [turn("user", 3), turn("assistant", "a")]}, ["must be text", "a number"]),
    ],
)
def test_records_that_cannot_be_trained_on(write, record, words):
    with pytest.raises(DataError) as caught:
        read_records(write("train.jsonl", [GOOD, record]))
    for word in [*words, "train.jsonl, line 2"]:
        assert word in str(caught.value)
    assert len(read_records(write("train.jsonl", [GOOD, record]), validate=False)) == 2


def test_near_misses_of_a_role_are_found_for_every_template(write):
    record = {"messages": [turn("user", "a"), turn("asistant", "b"), *GOOD["messages"]]}
    with pytest.raises(
        DataError, match=r"line 1: message 2 has the role 'asistant': .*'assistant'"
    ):
        read_records(write("train.jsonl", [record]))


def test_accepted_shapes():
    validate_record({"input_ids": [1, 2]})
    validate_record({"messages": [{"role": "assistant", "tool_calls": [{"name": "f"}]}]})


def test_reading_records_needs_no_torch():
    code = (
        "import sys; from ruda_finetune.data import read_records, generation_blocks;"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
