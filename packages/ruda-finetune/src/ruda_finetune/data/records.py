"""Reading training records from JSON and JSONL files, with a place to point at in every error."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from ..errors import DataError

#: Keys that make a record trainable: a chat, or tokens made elsewhere.
RECORD_KEYS = ("messages", "input_ids")
#: Roles that chat templates know; others are left to the template, near misses are errors.
ROLES = ("system", "user", "assistant", "tool", "developer", "function", "ipython")


@dataclass(frozen=True)
class RecordFile(Sequence[dict[str, Any]]):
    """The records of one file, each with its place in the file.

    Indexing and iterating give the records; `where(index)` names the place of one for messages
    ("cars.jsonl, line 12" or "cars.json, record 3").
    """

    path: Path
    unit: str  # "line" (JSONL) or "record" (JSON list)
    records: tuple[dict[str, Any], ...]
    numbers: tuple[int, ...]  # one-based
    sha256: str  # of the file's bytes

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> RecordFile: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | RecordFile:
        if isinstance(index, slice):
            return RecordFile(
                self.path, self.unit, self.records[index], self.numbers[index], self.sha256
            )
        return self.records[index]

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.records)

    def where(self, index: int) -> str:
        """The place of record `index` in the file, for messages."""
        return f"{self.path.name}, {self.unit} {self.numbers[index]}"


def read_records(path: str | Path, validate: bool = True) -> RecordFile:
    """Read a JSON list of objects, or JSONL (one object a line; blank lines are skipped).

    The content decides which of the two it is: a file that starts with `[` is a list, one that
    starts with `{` is JSONL. With `validate` (the default) every record must pass
    `validate_record`; switch it off to read files of another shape, such as bare prompts.

    Raises `DataError` with the line or record number: no such file, an empty file, text that is
    not UTF-8, bad JSON, an entry that is not an object, a record without messages or without
    assistant text.
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"[read_records] no such file: {path}{_near_files(path)}") from None
    except OSError as error:
        raise DataError(f"[read_records] cannot read {path}: {error.strerror}") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"[read_records] {path}, line {line}: not UTF-8 (byte {raw[error.start]:#04x}); "
            "save the file as UTF-8"
        ) from None
    stripped = text.lstrip()
    if not stripped:
        raise DataError(f"[read_records] {path} is empty: wanted a JSON list or JSON lines")
    unit = "record" if stripped.startswith("[") else "line"
    pairs = _parse_list(path, text) if unit == "record" else _parse_lines(path, text)
    if not pairs:
        raise DataError(f"[read_records] {path} holds an empty list: wanted at least one record")
    numbers, values = zip(*pairs)
    file = RecordFile(path, unit, values, numbers, hashlib.sha256(raw).hexdigest())
    for index, value in enumerate(values):
        if not isinstance(value, dict):
            raise DataError(
                f"[read_records] {file.where(index)}: wanted an object, got {_kind(value)}"
            )
        if validate:
            validate_record(value, file.where(index))
    return file


def validate_record(record: Mapping[str, Any], where: str = "the record") -> None:
    """Check that a record can be trained on; `where` opens the `DataError`'s text.

    A record is a chat (`messages`: a list of `{"role", "content"}` with assistant text in every
    assistant turn, `tools` beside it where the template takes them) or tokens made elsewhere
    (`input_ids` with `labels` or `assistant_masks`). Further keys may stand beside them; training
    does not look at them.
    """
    if "input_ids" in record:
        return  # the collator checks lengths and masks, which need its options
    if "messages" not in record:
        raise DataError(f"{where}: neither messages nor input_ids: {_found_keys(record)}")
    roles = validate_messages(record["messages"], where)
    for number, message in enumerate(record["messages"], 1):
        empty = not message.get("tool_calls") and not (message.get("content") or "").strip()
        if message["role"] == "assistant" and empty:
            raise DataError(
                f"{where}: assistant text is empty (message {number}): there is nothing to "
                "learn; remove the record or fill it in"
            )
    if "assistant" not in roles:
        raise DataError(f"{where}: no assistant message, got roles {', '.join(roles)}")


def validate_messages(messages: Any, where: str) -> list[str]:
    """The roles of a chat whose messages a text template can write; `DataError` otherwise."""
    if not isinstance(messages, list) or not messages:
        raise DataError(f"{where}: messages must be a non-empty list, got {_kind(messages)}")
    roles = []
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise DataError(
                f"{where}: message {number} must be an object with a role and content, "
                f"got {_kind(message)}"
            )
        role, content = message["role"], message.get("content")
        roles.append(role)
        near = difflib.get_close_matches(role, ROLES, n=1, cutoff=0.8)
        if near and role not in ROLES:
            raise DataError(
                f"{where}: message {number} has the role {role!r}: did you mean {near[0]!r}?"
            )
        calls = message.get("tool_calls")
        if content is None and not calls:
            raise DataError(f"{where}: message {number} ({role}) has no content")
        if isinstance(content, list):  # a template for text would write it as Python does
            raise DataError(
                f"{where}: content of message {number} ({role}) is a list of parts: "
                "write it as text"
            )
        if content is not None and not isinstance(content, str):
            raise DataError(
                f"{where}: content of message {number} ({role}) must be text, got {_kind(content)}"
            )
    return roles


def _parse_list(path: Path, text: str) -> list[tuple[int, Any]]:
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        record = _records_before(text, error.pos)
        raise DataError(
            f"[read_records] {path}, line {error.lineno}, column {error.colno} "
            f"(record {record}): bad JSON: {error.msg}"
        ) from None
    return list(enumerate(values, 1))


def _records_before(text: str, position: int) -> int:
    """One-based number of the list entry that `position` lies in; `text` starts with `[`."""
    decoder = json.JSONDecoder()
    index, count = text.index("[") + 1, 0
    while index < position:
        while index < len(text) and text[index] in " \t\r\n,":
            index += 1
        try:
            _, index = decoder.raw_decode(text, index)
        except json.JSONDecodeError:
            break
        count += 1
    return count + 1


def _parse_lines(path: Path, text: str) -> list[tuple[int, Any]]:
    pairs = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            pairs.append((number, json.loads(line)))
        except json.JSONDecodeError as error:
            raise DataError(
                f"[read_records] {path}, line {number}, column {error.colno}: bad JSON: "
                f"{error.msg}{_single_object_hint(text)}"
            ) from None
    return pairs


def _single_object_hint(text: str) -> str:
    """What to say when the whole file is one JSON object spread over lines."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return ""
    lists = [key for key, entry in value.items() if isinstance(entry, list)]
    where = f" under {lists[0]!r}" if lists else ""
    return (
        f" (the file is one JSON object with the keys {', '.join(map(repr, value))}; wanted a list "
        f"of records at the top, or one object a line: take the list out{where})"
    )


def _found_keys(record: Mapping[str, Any]) -> str:
    keys = [str(key) for key in record]
    found = "found no keys" if not keys else "found the keys " + ", ".join(map(repr, keys))
    near = [key for key in keys if difflib.get_close_matches(key.lower(), RECORD_KEYS)]
    if "conversations" in keys:
        near.append("conversations")
    if near:
        found += f"; rename {near[0]!r} to 'messages', each entry with 'role' and 'content'"
    return found


def _near_files(path: Path) -> str:
    if not path.parent.is_dir():
        return f" (the folder {path.parent} does not exist)"
    names = [entry.name for entry in path.parent.iterdir() if entry.suffix in {".json", ".jsonl"}]
    near = difflib.get_close_matches(path.name, names)
    return f"; did you mean {', '.join(near)}?" if near else ""


def _kind(value: Any) -> str:
    """What a JSON value is, in words."""
    if value is None:
        return "null"
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    name = names.get(type(value), "a number" if isinstance(value, (int, float)) else "a value")
    empty = isinstance(value, (list, dict, str)) and not value
    return f"{name} (empty)" if empty else name
