"""Stream capture and CUDA graphs on the double."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cuda

from ruda_runtime import testing

Result = cuda.CUresult
GLOBAL = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
RELAXED = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
SCALE = {"x": "*fp32", "out": "*fp32", "n": "i32", "factor": "fp32", "BLOCK": 128}


@pytest.fixture
def setup(double: Any) -> Any:
    class Setup:
        kernel = double.Kernel("scale", SCALE)
        first, second = double.stream(), double.stream()
        x = double.upload(np.arange(100, dtype=np.float32))
        y = double.upload(np.zeros(100, np.float32))
        z = double.upload(np.zeros(100, np.float32))

    yield Setup
    double.ok(cuda.cuCtxSynchronize())
    double.free(Setup.x, Setup.y, Setup.z)
    for each in (Setup.first, Setup.second):
        double.ok(cuda.cuStreamDestroy(each))
    Setup.kernel.close()


def capture(double: Any, setup: Any, factor: float) -> Any:
    """x -> y on the first stream; y -> z on the second, which joins and is joined."""
    fork, join = double.event(timing=False), double.event(timing=False)
    double.ok(cuda.cuStreamBeginCapture(setup.first, GLOBAL))
    setup.kernel(1, setup.first, setup.x, setup.y, 100, factor)
    double.ok(cuda.cuEventRecord(fork, setup.first))
    double.ok(cuda.cuStreamWaitEvent(setup.second, fork, 0))
    setup.kernel(1, setup.second, setup.y, setup.z, 100, 10.0)
    double.ok(cuda.cuEventRecord(join, setup.second))
    double.ok(cuda.cuMemsetD32Async(setup.y + 4, 0, 0, setup.first))
    double.ok(cuda.cuStreamWaitEvent(setup.first, join, 0))
    double.ok(cuda.cuMemsetD32Async(setup.y, 0, 1, setup.first))
    graph = double.ok(cuda.cuStreamEndCapture(setup.first))
    for each in (fork, join):
        double.ok(cuda.cuEventDestroy(each))
    return graph


def run(double: Any, setup: Any, graph: Any) -> np.ndarray:
    double.ok(cuda.cuGraphLaunch(graph, setup.first))
    double.ok(cuda.cuStreamSynchronize(setup.first))
    return double.download(setup.z, 100)


def test_a_captured_graph_replays_with_the_memory_of_the_moment(double: Any, setup: Any) -> None:
    graph = capture(double, setup, 2.0)
    assert (double.download(setup.z, 100) == 0).all()  # nothing ran while capturing
    nodes, count = double.ok(cuda.cuGraphGetNodes(graph, 10))
    kinds = [double.ok(cuda.cuGraphNodeGetType(node)).name.split("_")[-1] for node in nodes[:count]]
    assert sorted(kinds) == ["KERNEL", "KERNEL", "MEMSET", "MEMSET"]
    executable = double.ok(cuda.cuGraphInstantiate(graph, 0))
    double.ok(cuda.cuGraphDestroy(graph))
    x = np.arange(100, dtype=np.float32)
    for _ in range(3):
        np.testing.assert_array_equal(run(double, setup, executable), 20 * x)
        x = np.random.default_rng(0).standard_normal(100).astype(np.float32)
        double.ok(cuda.cuMemcpyHtoD(setup.x, x.ctypes.data, 400))
    double.ok(cuda.cuGraphExecDestroy(executable))


def test_an_executable_graph_is_updated_from_another_capture(double: Any, setup: Any) -> None:
    graph = capture(double, setup, 2.0)
    executable = double.ok(cuda.cuGraphInstantiate(graph, 0))
    other = capture(double, setup, 3.0)
    double.ok(cuda.cuGraphExecUpdate(executable, other))
    np.testing.assert_array_equal(
        run(double, setup, executable), 30 * np.arange(100, dtype=np.float32)
    )
    double.ok(cuda.cuStreamBeginCapture(setup.first, GLOBAL))
    setup.kernel(1, setup.first, setup.x, setup.y, 100, 1.0)
    shorter = double.ok(cuda.cuStreamEndCapture(setup.first))
    code = cuda.cuGraphExecUpdate(executable, shorter)[0]
    assert code == Result.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
    for each in (graph, other, shorter):
        double.ok(cuda.cuGraphDestroy(each))
    double.ok(cuda.cuGraphExecDestroy(executable))


def test_kernel_node_parameters(double: Any, setup: Any) -> None:
    graph = capture(double, setup, 2.0)
    nodes, _ = double.ok(cuda.cuGraphGetNodes(graph, 10))
    executable = double.ok(cuda.cuGraphInstantiate(graph, 0))
    parameters = double.ok(cuda.cuGraphKernelNodeGetParams(nodes[0]))
    assert (parameters.gridDimX, parameters.blockDimX) == (1, 128)
    kinds = (ctypes.c_void_p,) * 2 + (ctypes.c_int32, ctypes.c_float) + (ctypes.c_void_p,) * 2
    parameters.kernelParams = ((setup.x, setup.y, 100, 5.0, 0, 0), kinds)
    double.ok(cuda.cuGraphExecKernelNodeSetParams(executable, nodes[0], parameters))
    np.testing.assert_array_equal(
        run(double, setup, executable), 50 * np.arange(100, dtype=np.float32)
    )
    double.ok(cuda.cuGraphDestroy(graph))
    double.ok(cuda.cuGraphExecDestroy(executable))


def test_a_graph_built_by_hand(double: Any, setup: Any) -> None:
    graph = double.ok(cuda.cuGraphCreate(0))
    calls: list[int] = []
    note = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: calls.append(len(calls)))
    host = cuda.CUDA_HOST_NODE_PARAMS()
    host.fn = cuda.CUhostFn(_ptr=ctypes.addressof(note))
    last = double.ok(cuda.cuGraphAddHostNode(graph, None, 0, host))
    fill = cuda.CUDA_MEMSET_NODE_PARAMS()
    fill.dst, fill.value, fill.elementSize, fill.width, fill.height = setup.z, 7, 4, 100, 1
    context = double.ok(cuda.cuCtxGetCurrent())
    first = double.ok(cuda.cuGraphAddMemsetNode(graph, None, 0, fill, context))
    double.ok(cuda.cuGraphAddDependencies(graph, [first], [last], None, 1))
    executable = double.ok(cuda.cuGraphInstantiate(graph, 0))
    result = run(double, setup, executable).view(np.int32)
    assert (result == 7).all() and calls == [0]
    code = cuda.cuGraphAddDependencies(graph, [last], [first], None, 1)[0]
    assert code == Result.CUDA_ERROR_INVALID_VALUE
    assert "circle" in testing.last_report()
    testing.clear_reports()
    double.ok(cuda.cuGraphDestroy(graph))
    double.ok(cuda.cuGraphExecDestroy(executable))


def test_launches_after_a_free_are_found(double: Any, setup: Any, found: Any) -> None:
    block = double.ok(cuda.cuMemAlloc(400))
    double.ok(cuda.cuStreamBeginCapture(setup.first, GLOBAL))
    setup.kernel(1, setup.first, setup.x, int(block), 100, 1.0)
    graph = double.ok(cuda.cuStreamEndCapture(setup.first))
    executable = double.ok(cuda.cuGraphInstantiate(graph, 0))
    double.ok(cuda.cuGraphLaunch(executable, setup.first))
    double.ok(cuda.cuMemFree(block))
    code = cuda.cuGraphLaunch(executable, setup.first)[0]
    assert code == Result.CUDA_ERROR_INVALID_VALUE
    found("[cuGraphLaunch] kernel scale, argument out", "use after free")
    double.ok(cuda.cuGraphDestroy(graph))
    double.ok(cuda.cuGraphExecDestroy(executable))


FORBIDDEN = {
    "synchronise": lambda s, e: cuda.cuStreamSynchronize(s.first),
    "query": lambda s, e: cuda.cuStreamQuery(s.first),
    "allocate": lambda s, e: cuda.cuMemAlloc(64),
    "context": lambda s, e: cuda.cuCtxSynchronize(),
    "copy and wait": lambda s, e: cuda.cuMemcpyDtoD(s.x, s.y, 4),
    "stream-ordered allocation": lambda s, e: cuda.cuMemAllocAsync(64, s.first),
    "event from outside": lambda s, e: cuda.cuStreamWaitEvent(s.first, e, 0),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_a_capture_forbids(double: Any, setup: Any, name: str) -> None:
    outside = double.event()
    double.ok(cuda.cuEventRecord(outside, setup.second))
    double.ok(cuda.cuStreamBeginCapture(setup.first, GLOBAL))
    code = FORBIDDEN[name](setup, outside)[0]
    assert 900 <= int(code) < 910, code
    assert "the capture on stream" in testing.last_report()
    testing.clear_reports()
    code = cuda.cuStreamEndCapture(setup.first)[0]
    assert code == Result.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    double.ok(cuda.cuEventDestroy(outside))
    # The stream is itself again.
    double.ok(cuda.cuStreamSynchronize(setup.first))


def test_a_stream_that_nobody_joined(double: Any, setup: Any, found: Any) -> None:
    fork = double.event(timing=False)
    double.ok(cuda.cuStreamBeginCapture(setup.first, RELAXED))
    double.ok(cuda.cuEventRecord(fork, setup.first))
    double.ok(cuda.cuStreamWaitEvent(setup.second, fork, 0))
    setup.kernel(1, setup.second, setup.x, setup.y, 100, 1.0)
    code = cuda.cuStreamEndCapture(setup.first)[0]
    assert code == Result.CUDA_ERROR_STREAM_CAPTURE_UNJOINED
    found("behind which nobody waits")
    status = double.ok(cuda.cuStreamIsCapturing(setup.second))
    assert status == cuda.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    double.ok(cuda.cuEventDestroy(fork))


def test_the_default_stream_while_a_blocking_stream_captures(double: Any, found: Any) -> None:
    stream = double.ok(cuda.cuStreamCreate(0))
    block = double.ok(cuda.cuMemAlloc(64))
    double.ok(cuda.cuStreamBeginCapture(stream, RELAXED))
    code = cuda.cuMemsetD8Async(block, 0, 64, 0)[0]
    assert code == Result.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
    found("the default stream would depend on a capturing stream")
    cuda.cuStreamEndCapture(stream)
    double.ok(cuda.cuMemFree(block))
    double.ok(cuda.cuStreamDestroy(stream))


def test_a_missing_dependency_shows_in_the_random_order(fresh: Any) -> None:
    code = """
        d.start()
        s = d.stream()
        first, second = d.upload(np.zeros(4, np.int32)), d.upload(np.zeros(4, np.int32))
        graph = ok(cuda.cuGraphCreate(0))
        context, nodes = ok(cuda.cuCtxGetCurrent()), []
        for value in (1, 2):
            fill = cuda.CUDA_MEMSET_NODE_PARAMS()
            fill.dst, fill.value, fill.elementSize = first, value, 4
            fill.width, fill.height = 4, 1
            needs = nodes[-1:] if ORDERED else []
            nodes.append(ok(cuda.cuGraphAddMemsetNode(graph, needs, len(needs), fill, context)))
        executable = ok(cuda.cuGraphInstantiate(graph, 0))
        seen = set()
        for _ in range(20):
            ok(cuda.cuGraphLaunch(executable, s))
            ok(cuda.cuStreamSynchronize(s))
            seen.add(int(d.download(first, 4, np.int32)[0]))
        print(*sorted(seen))
        """
    import textwrap

    code = textwrap.dedent(code)
    assert fresh("ORDERED = True\n" + code).stdout.split() == ["2"]
    assert fresh("ORDERED = False\n" + code).stdout.split() == ["1", "2"]
