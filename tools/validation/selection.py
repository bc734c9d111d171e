"""What is run: groups of test files, what of them is left out, which skips are allowed."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from validation.machine import ROOT

FILE = Path(__file__).with_name("selection.toml")


@dataclass(frozen=True)
class Group:
    """Test files that share a process.

    Attributes:
        name: of the group.
        family: by which it is asked for; several groups have one when a family is `split`, one
            process a file.
        paths: files and folders, relative to the checkout.
        needs: the last package that it imports.
        bundle: whether it runs with a bundle's kernels too.
        keyword: pytest's -k, for rehearsals of a part.
    """

    name: str
    paths: tuple[str, ...]
    needs: str
    bundle: bool = False
    keyword: str = ""
    family: str = ""


@dataclass(frozen=True)
class Rule:
    """A pattern on pytest ids and a reason."""

    pattern: str
    reason: str


@dataclass(frozen=True)
class Selection:
    """The groups, and the rules for their cases."""

    groups: tuple[Group, ...]
    left_out: tuple[Rule, ...]
    allowed_skips: tuple[Rule, ...]

    def accepted(self, id: str, message: str, target: str) -> str:
        """Why a skipped case does not count against the run; empty when it does."""
        if message.startswith("host target: "):  # the packages' conftest.py say which
            return "about the host"
        if target == "double" and message.startswith("driver double: "):
            return "left to GPUs"
        return next(
            (rule.reason for rule in self.allowed_skips if fnmatchcase(id, rule.pattern)), ""
        )


def read(file: Path = FILE) -> Selection:
    """The selection of a file.

    Raises:
        ValueError: it names something twice, or something that is not there.
    """
    content = tomllib.loads(file.read_text())
    groups = tuple(group for each in content["group"] for group in _groups(**each))
    names = [group.name for group in groups]
    if len(set(names)) != len(names):
        raise ValueError(f"{file.name}: a group's name is there twice")
    return Selection(
        groups, _rules(content.get("left_out", [])), _rules(content.get("allowed_skip", []))
    )


def _groups(
    name: str, paths: list[str], needs: str, bundle: bool = False, split: bool = False
) -> list[Group]:
    if not split:
        return [Group(name, tuple(paths), needs, bundle, family=name)]
    files = sorted(file for path in paths for file in (ROOT / path).glob("test_*.py"))
    return [
        Group(f"{name}-{file.stem.removeprefix('test_')}", (str(file.relative_to(ROOT)),), needs,
              bundle, family=name)
        for file in files
    ]  # fmt: skip


def _rules(rows: list[dict[str, Any]]) -> tuple[Rule, ...]:
    return tuple(Rule(**row) for row in rows)


def choose(selection: Selection, wanted: list[str]) -> Selection:
    """The groups that are asked for: NAME, or NAME:KEYWORD for a part of one.

    Raises:
        ValueError: there is no such group.
    """
    if not wanted:
        return selection
    known = list(dict.fromkeys(group.family for group in selection.groups))
    groups = []
    for each in wanted:
        name, _, keyword = each.partition(":")
        if name not in known:
            raise ValueError(f"got the group {name!r}, wanted one of: {', '.join(known)}")
        groups += [
            replace(group, keyword=keyword) for group in selection.groups if group.family == name
        ]
    return Selection(tuple(groups), selection.left_out, selection.allowed_skips)
