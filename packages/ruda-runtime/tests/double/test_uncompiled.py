"""Kernels that get empty code are interpreted all the same."""

from __future__ import annotations

from typing import Any


def test_nothing_is_compiled_and_results_are_right(fresh: Any) -> None:
    done = fresh(
        """
        from ruda_runtime import Tensor, kernel
        from ruda_runtime.kernel import Definition
        from ruda_runtime.launch import View
        from ruda_runtime.testing.uncompiled import launch_uncompiled
        scale = Definition("sample.scale", "kernels:scale", {"x": "*fp32", "out": "*fp32|fp16",
                           "n": "i32%16", "factor": "fp32", "BLOCK": "constexpr"})
        noted = []
        launch_uncompiled(noted.append)
        for n, dtype in ((100, "float32"), (96, "float32"), (96, "float16"), (96, "float16")):
            x = Tensor.from_numpy(np.arange(n, dtype=np.float32), copy=True)
            out = Tensor.from_numpy(np.zeros(n, dtype), copy=True)
            views = [View(t.data_ptr, t.dtype_name, (n,), (1,)) for t in (x, out)]
            kernel.submit([scale((4,), x=views[0], out=views[1], n=n, factor=2.5, BLOCK=32)])
            assert (out.numpy() == 2.5 * np.arange(n)).all()
        print(kernel.compile_counts()["compiled"], [len(each.divisible) for each in noted])
        print([dict(each.signature)["out"] for each in noted], testing.reports())
        """
    )
    assert done.stdout.splitlines() == [
        "0 [0, 3, 3]", "['*fp32', '*fp32', '*fp16'] []",
    ], done.stderr  # fmt: skip
