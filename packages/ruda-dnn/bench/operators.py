"""Time this package's operators on the shapes of a 135M language model.

    python packages/ruda-dnn/bench/operators.py [--rounds 7]

Prints the median time, and what of memory traffic or arithmetic that is a second. Comparisons with
PyTorch's operators are rows of the ledger and come from ruda-torch's bench.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

import ruda_dnn
import ruda_runtime
from ruda_runtime import Tensor
from ruda_runtime.conformance import numpy_dtype

ROWS, WIDTH, INNER, CLASSES = 1024, 576, 1536, 49152


def values(*shape: int, dtype: str = "float32") -> Tensor:
    rng = np.random.default_rng(0)
    return Tensor.from_numpy(rng.standard_normal(shape).astype(numpy_dtype(dtype)), copy=True)


def report(name: str, rounds: int, work: float, unit: str, run: Callable[[], object]) -> None:
    run()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    median = statistics.median(times)
    print(f"{name:42} {median * 1e3:9.3f} ms {work / median / 1e9:8.1f} {unit}")


def normalization(rounds: int, dtype: str) -> None:
    x, grad = values(ROWS, WIDTH, dtype=dtype), values(ROWS, WIDTH, dtype=dtype)
    weight = values(WIDTH)
    _, rstd = ruda_dnn.rms_norm_with_stats(x, weight)
    report(
        f"rms_norm {dtype}", rounds, 2.0 * x.nbytes, "GB/s", lambda: ruda_dnn.rms_norm(x, weight)
    )
    report(
        f"rms_norm_backward {dtype}",
        rounds,
        3.0 * x.nbytes,
        "GB/s",
        lambda: ruda_dnn.rms_norm_backward(x, weight, grad, rstd),
    )


def activation(rounds: int, dtype: str) -> None:
    gate, up = values(ROWS, INNER, dtype=dtype), values(ROWS, INNER, dtype=dtype)
    report(
        f"silu_mul {dtype}", rounds, 3.0 * up.nbytes, "GB/s", lambda: ruda_dnn.silu_mul(gate, up)
    )
    report(
        f"silu_mul_backward {dtype}",
        rounds,
        5.0 * up.nbytes,
        "GB/s",
        lambda: ruda_dnn.silu_mul_backward(gate, up, up),
    )


def loss(rounds: int) -> None:
    hidden, head = values(256, WIDTH), values(CLASSES, WIDTH)
    target = Tensor.from_numpy(np.random.default_rng(1).integers(0, CLASSES, 256))
    work = 2.0 * 256 * WIDTH * CLASSES
    report(
        "linear_cross_entropy float32",
        rounds,
        work,
        "GFLOP/s",
        lambda: ruda_dnn.linear_cross_entropy(hidden, head, target),
    )
    report(
        "linear_cross_entropy with dhidden float32",
        rounds,
        2.0 * work,
        "GFLOP/s",
        lambda: ruda_dnn.linear_cross_entropy(hidden, head, target, gradients=(True, False, False)),
    )


def optim(rounds: int) -> None:
    sizes = [(WIDTH, 16)] * 400
    parameters, gradients = ([values(*size) for size in sizes] for _ in range(2))
    moments = [[Tensor.from_numpy(np.zeros(size, np.float32)) for size in sizes] for _ in range(2)]
    masters = [None] * len(sizes)
    report(
        f"adamw_step of {len(sizes)} tensors",
        rounds,
        28.0 * len(sizes) * WIDTH * 16,
        "GB/s",
        lambda: ruda_dnn.adamw_step(parameters, gradients, masters, *moments, step=1),
    )
    report(
        "gradient_norm of them",
        rounds,
        4.0 * len(sizes) * WIDTH * 16,
        "GB/s",
        lambda: ruda_dnn.gradient_norm(gradients),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Time ruda-dnn's operators.")
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    print(f"{ruda_runtime.get_num_threads()} threads, ruda-dnn {ruda_dnn.__version__}")
    for dtype in ("float32", "bfloat16"):
        normalization(rounds, dtype)
        activation(rounds, dtype)
    loss(rounds)
    optim(rounds)


if __name__ == "__main__":
    main()
