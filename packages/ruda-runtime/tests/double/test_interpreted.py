"""Interpreted kernels give right results, in the order of streams."""

from __future__ import annotations

import time
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cuda.bindings import driver as cuda

from ruda_runtime import testing


@pytest.fixture
def stream(double: Any) -> Any:
    made = double.stream()
    yield made
    double.ok(cuda.cuStreamDestroy(made))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_elementwise_with_a_mask(double: Any, stream: Any, dtype: str) -> None:
    numpy_dtype = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    kind = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16", "float64": "*fp64"}[dtype]
    values = np.random.default_rng(0).standard_normal(1000).astype(numpy_dtype)
    x, out = double.upload(values), double.upload(np.full(1003, 9, numpy_dtype))
    types = {"x": kind, "out": kind, "n": "i32", "factor": "fp32", "BLOCK": 128}
    kernel = double.Kernel("scale", types)
    kernel(8, stream, x, out, 1000, 2.5)
    double.ok(cuda.cuStreamSynchronize(stream))
    result = double.download(out, 1003, numpy_dtype)
    expected = (values.astype(np.float32) * np.float32(2.5)).astype(numpy_dtype)
    np.testing.assert_array_equal(result[:1000], expected)
    assert (result[1000:] == 9).all()
    double.free(x, out)
    kernel.close()


def test_a_reduction_over_rows_with_a_specialised_stride(double: Any, stream: Any) -> None:
    values = np.random.default_rng(1).standard_normal((5, 100)).astype(np.float32)
    x, out = double.upload(values), double.upload(np.zeros(5, np.float32))
    types = {"x": "*fp32", "out": "*fp32", "columns": "i32", "stride": "i64", "BLOCK": 128}
    kernel = double.Kernel("row_sum", types)
    kernel(5, stream, x, out, 100, 100)
    double.ok(cuda.cuStreamSynchronize(stream))
    np.testing.assert_allclose(double.download(out, 5), values.sum(axis=1), rtol=2e-5, atol=1e-5)
    kernel.close()
    # A stride that is 1 comes as a constant: rows overlap, each begins one element later.
    kernel = double.Kernel("row_sum", {**types, "stride": 1})
    kernel(5, stream, x, out, 3)
    double.ok(cuda.cuStreamSynchronize(stream))
    expected = [values.reshape(-1)[i : i + 3].sum() for i in range(5)]
    np.testing.assert_allclose(double.download(out, 5), expected, rtol=1e-6)
    kernel.close()
    double.free(x, out)


def test_atomics(double: Any, stream: Any) -> None:
    values = np.random.default_rng(2).integers(0, 10, 500).astype(np.int32)
    x, counts = double.upload(values), double.upload(np.zeros(10, np.int32))
    kernel = double.Kernel("histogram", {"x": "*i32", "counts": "*i32", "n": "i32", "BLOCK": 64})
    kernel(8, stream, x, counts, 500)
    double.ok(cuda.cuStreamSynchronize(stream))
    result = double.download(counts, 10, np.int32)
    np.testing.assert_array_equal(result, np.bincount(values, minlength=10))
    double.free(x, counts)
    kernel.close()


def test_a_matrix_product(double: Any, stream: Any) -> None:
    generator = np.random.default_rng(3)
    a = generator.standard_normal((16, 64)).astype(np.float32)
    b = generator.standard_normal((64, 16)).astype(np.float32)
    addresses = [double.upload(each) for each in (a, b, np.zeros((16, 16), np.float32))]
    types = {"a": "*fp32", "b": "*fp32", "c": "*fp32", "K": "i32", "BLOCK": 16}
    kernel = double.Kernel("product", types)
    kernel(1, stream, *addresses, 64)
    double.ok(cuda.cuStreamSynchronize(stream))
    np.testing.assert_allclose(double.download(addresses[2], (16, 16)), a @ b, rtol=1e-4, atol=1e-5)
    double.free(*addresses)
    kernel.close()


def test_offsets_of_64_bits(fresh: Any) -> None:
    done = fresh(
        """
        d.start()
        s, n = d.stream(), (3 << 30) // 4
        x, out = ok(cuda.cuMemAlloc(4 * n)), ok(cuda.cuMemAlloc(4))
        ok(cuda.cuMemsetD32(int(x) + 4 * (n - 1), 5, 1))
        for kind, offset in (("i64", n - 1), ("i64", 1 << 40)):
            kernel = d.Kernel("far_read", {"x": "*i32", "out": "*i32", "offset": kind})
            kernel(1, s, int(x), int(out), offset)
            print(cuda.cuStreamSynchronize(s)[0].name)
        print(d.download(int(out), 1, np.int32))
        """,
        memory=8 << 30,
    )
    assert done.stdout.split() == ["CUDA_SUCCESS", "CUDA_ERROR_ILLEGAL_ADDRESS", "[5]"], done.stderr


def test_streams_share_the_server_in_their_own_order(double: Any) -> None:
    streams = [double.stream() for _ in range(3)]
    types = {"x": "*fp32", "out": "*fp32", "n": "i32", "factor": "fp32", "BLOCK": 128}
    kernel = double.Kernel("scale", types)
    buffers = [double.upload(np.full(100, i + 1, np.float32)) for i in range(3)]
    for _ in range(5):
        for stream, buffer in zip(streams, buffers):
            kernel(1, stream, buffer, buffer, 100, 2.0)
    double.ok(cuda.cuCtxSynchronize())
    for i, buffer in enumerate(buffers):
        assert (double.download(buffer, 100) == (i + 1) * 32).all()
    double.free(*buffers)
    kernel.close()
    for stream in streams:
        double.ok(cuda.cuStreamDestroy(stream))


def test_masked_lanes_without_other_are_visibly_undefined(double: Any, stream: Any) -> None:
    x, out = double.upload(np.zeros(16, np.float32)), double.upload(np.zeros(16, np.float32))
    types = {"x": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": 16}
    kernel = double.Kernel("masked_without_other", types)
    kernel(1, stream, x, out, 10)
    double.ok(cuda.cuStreamSynchronize(stream))
    result = double.download(out, 16)
    assert (result[:10] == 0).all() and np.isnan(result[10:]).all()
    double.free(x, out)
    kernel.close()


def test_a_thousand_launches_take_at_most_four_seconds(double: Any, stream: Any) -> None:
    types = {"x": "*fp32", "out": "*fp32", "n": "i32", "factor": "fp32", "BLOCK": 128}
    kernel = double.Kernel("scale", types)
    x = double.upload(np.ones(128, np.float32))
    kernel(1, stream, x, x, 128, 1.0)
    double.ok(cuda.cuStreamSynchronize(stream))
    before = testing.counters()["interpreted"]
    start = time.perf_counter()
    for _ in range(1000):
        kernel(1, stream, x, x, 128, 1.0)
    double.ok(cuda.cuStreamSynchronize(stream))
    seconds = time.perf_counter() - start
    assert testing.counters()["interpreted"] == before + 1000
    assert seconds < 4, f"{seconds:.1f} s"
    double.free(x)
    kernel.close()


def test_the_same_seed_gives_the_same_order(fresh: Any) -> None:
    code = """
        d.start()
        kernel, s = d.Kernel("last_writer", {"out": "*i32", "n": "i32"}), d.stream()
        out = d.upload(np.zeros(1, np.int32))
        for _ in range(4):
            kernel(50, s, out, 1)
            ok(cuda.cuStreamSynchronize(s))
            print(d.download(out, 1, np.int32)[0])
        """
    first, again = fresh(code, seed=5).stdout, fresh(code, seed=5).stdout
    assert first == again and len(set(first.split())) > 1
    assert fresh(code, seed=6).stdout != first
    assert fresh(code, shuffle=False).stdout.split() == ["49"] * 4


def test_the_server_ends_with_its_client(fresh: Any) -> None:
    done = fresh(
        """
        import subprocess, os
        d.start()
        x, s = d.upload(np.ones(4, np.float32)), d.stream()
        kernel = d.Kernel("far_read", {"x": "*fp32", "out": "*fp32", "offset": "i32"})
        kernel(1, s, x, x, 1)
        ok(cuda.cuStreamSynchronize(s))
        children = open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read()
        servers = [p for p in os.listdir("/proc") if p.isdigit() and
                   f"PPid:\\t{os.getpid()}\\n" in open(f"/proc/{p}/status").read()]
        print(*servers)
        """
    )
    assert done.returncode == 0, done.stderr
    (server,) = done.stdout.split()
    from pathlib import Path

    assert not Path(f"/proc/{server}").exists()


def test_the_death_of_the_server_is_reported(fresh: Any) -> None:
    done = fresh(
        """
        import os, signal
        d.start()
        x, s = d.upload(np.ones(4, np.float32)), d.stream()
        kernel = d.Kernel("far_read", {"x": "*fp32", "out": "*fp32", "offset": "i32"})
        kernel(1, s, x, x, 1)
        ok(cuda.cuStreamSynchronize(s))
        for p in os.listdir("/proc"):
            if p.isdigit() and f"PPid:\\t{os.getpid()}\\n" in open(f"/proc/{p}/status").read():
                os.kill(int(p), signal.SIGKILL)
        kernel(1, s, x, x, 1)
        print(cuda.cuStreamSynchronize(s)[0].name, testing.last_report())
        """
    )
    assert "CUDA_ERROR_LAUNCH_FAILED" in done.stdout, done.stderr
    assert "ended by signal 9" in done.stdout
