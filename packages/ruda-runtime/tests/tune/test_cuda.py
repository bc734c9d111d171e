"""Tuning on the cuda target, over the driver's double: the runtime's events time the candidates."""

from __future__ import annotations

from collections.abc import Callable

CODE = """
import numpy as np
import ruda_runtime as rr
from ruda_runtime import tune

x = rr.Tensor.from_numpy(np.arange(1 << 20, dtype=np.float32))
runs = []

def run(plan):
    runs.append(plan)
    for _ in range({"eight": 8, "one": 1, "wrong": 1}[plan]):
        y = x.copy()
    return y.slice(0, 1) if plan == "wrong" else y

tuner = tune.Tuner(tune.Policy(maximum_relative_mad=10.0), disk=False, environment={})
y = tuner.execute("copy/1", {"x": x.shape}, "eight", ["one"], run)
(record,) = tuner.records()
found = record.key["environment"]
print(record.choice, runs[-1], (y.numpy() == np.arange(1 << 20)).all(), len(runs))
print(found["target"], found["compute_capability"], bool(found["driver"]), found["device"][:11])
try:
    tuner.execute("copy/2", {"x": x.shape}, "eight", ["wrong"], run)
except tune.WrongNumbersError as error:
    print(str(error)[:60])
"""


def test_copies_on_the_double(python_output: Callable[..., str]) -> None:
    output = python_output(CODE, RUDA_CUDA_DRIVER="double", RUDA_TARGET="cuda")
    assert output.splitlines() == [
        "one one True 21",
        "cuda [9, 0] True RUDA driver",
        "[copy/2] candidate 'wrong' gives other numbers than the reference"[:60],
    ]
