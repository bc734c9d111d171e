"""Training data for one narrow task: a sentence about a car in, a JSON record out.

    python prepare.py --output data/

writes train.jsonl and test.jsonl, one chat per line:

    {"messages": [{"role": "system", ...}, {"role": "user", ...}, {"role": "assistant", ...}]}

That is all `ruda-finetune train` asks of a data set. To make your own task from this file, change

- `load_records`: where your records come from;
- `SYSTEM` and `TEMPLATES`: how a request is worded;
- `answer`: what the model should reply;
- `group`: what must not occur on both sides of the split. Here it is the car's name, so that a
  model cannot pass by remembering it.
"""

from __future__ import annotations

import argparse
import json
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SYSTEM = "Reply with one JSON record."

TEMPLATES = [
    "The {year} {name} from {origin} has {cylinders} cylinders, {horsepower} horsepower and gets "
    "{mpg} miles per gallon.",
    "Built in {origin} in {year}, the {name} makes {horsepower} hp with {cylinders} cylinders and "
    "does {mpg} mpg.",
    "I drove a {name} ({origin}, {year}): {cylinders} cylinders, {mpg} mpg, {horsepower} hp.",
    "{mpg} miles per gallon is what the {cylinders}-cylinder {name} of {year} manages; it comes "
    "from {origin} and has {horsepower} horsepower.",
    "With {horsepower} horsepower from {cylinders} cylinders, the {name}, made in {origin}, model "
    "year {year}, uses a gallon every {mpg} miles.",
]

FIELDS = {
    "name": "Name",
    "year": "Year",
    "origin": "Origin",
    "cylinders": "Cylinders",
    "horsepower": "Horsepower",
    "mpg": "Miles_per_Gallon",
}


def load_records() -> list[dict[str, Any]]:
    """The complete records of cars.json, which the package vega-datasets carries."""
    package = find_spec("vega_datasets")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("cars.json is missing: pip install --no-deps vega-datasets")
    path = Path(package.submodule_search_locations[0]) / "_data" / "cars.json"
    records = []
    for row in json.loads(path.read_text()):
        if all(row[column] is not None for column in FIELDS.values()):
            record = {field: row[column] for field, column in FIELDS.items()}
            record["year"] = int(record["year"][:4])
            records.append(record)
    return records


def answer(record: dict[str, Any]) -> str:
    return json.dumps(record)


def group(record: dict[str, Any]) -> str:
    return record["name"]


def chat(record: dict[str, Any], template: str) -> dict[str, Any]:
    return {
        "messages": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": template.format(**record)},
            {"role": "assistant", "content": answer(record)},
        ]
    }


def split(
    records: list[dict[str, Any]], test: int, seed: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """One record of each of `test` groups, and all records of the other groups."""
    generator = random.Random(seed)
    groups = sorted({group(record) for record in records})
    generator.shuffle(groups)
    held_out = groups[:test]
    chosen: dict[str, dict[str, Any]] = {}
    for record in records:
        if group(record) in held_out:
            chosen.setdefault(group(record), record)
    train = [record for record in records if group(record) not in held_out]
    generator.shuffle(train)
    return train, [chosen[name] for name in held_out]


def write(path: Path, records: list[dict[str, Any]]) -> None:
    """One chat per record; the templates take turns."""
    with path.open("w") as file:
        for index, record in enumerate(records):
            file.write(json.dumps(chat(record, TEMPLATES[index % len(TEMPLATES)])) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the car records as chats.")
    parser.add_argument("--output", type=Path, default=Path("data"))
    parser.add_argument("--test", type=int, default=20, help="held-out records")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    train, test = split(load_records(), arguments.test, arguments.seed)
    arguments.output.mkdir(parents=True, exist_ok=True)
    write(arguments.output / "train.jsonl", train)
    write(arguments.output / "test.jsonl", test)
    print(f"{len(train)} training and {len(test)} held-out chats in {arguments.output}")


if __name__ == "__main__":
    main()
