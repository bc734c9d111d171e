"""What graphs promise, as functions that run on every target in both ways of dispatch.

`python graph_cases.py PROBE` runs every case in this process, whose RUDA_TARGET and RUDA_ASYNC say
where and which way, and prints a JSON object: name of the case -> "" or what went wrong.
`test_graphs.py` reads it.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

import numpy as np
import stream_cases

import ruda_runtime as rr

ASYNC = os.environ.get("RUDA_ASYNC") == "1"
ON_GPU = os.environ.get("RUDA_TARGET") == "cuda"


def add(x: rr.Tensor, addend: float = 1.0) -> None:
    """x += addend on the current stream, by a kernel of the target."""
    if ON_GPU:
        import examples

        examples.SCALE_ADD((1,), x, None, x, x.size, addend, BLOCK=256, SIGN=1)
    else:
        stream_cases.slow(x, addend, 0)


# The example kernel of the GPU scales: x *= factor. Cases state what both do in these terms.
def after(value: float, times: int = 1, by: float = 3.0) -> float:
    return value * by**times if ON_GPU else value + by * times


def tensor(*values: float) -> rr.Tensor:
    result = rr.Tensor.from_numpy(np.array(values or (1.0, 2.0, 3.0, 4.0), np.float32), copy=True)
    rr.current_stream().synchronize()
    return result


def read(x: rr.Tensor) -> list[float]:
    rr.synchronize()
    return [float(each) for each in np.array(x.numpy()).ravel()]


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except (rr.RudaError, RuntimeError) as error:
        return str(error)
    raise AssertionError("no error")


def case_capture_runs_nothing_and_replays_repeat_it() -> None:
    x = tensor()
    with rr.Graph.capture() as graph:
        add(x, 3)
        add(x, 3)
    assert read(x) == [1, 2, 3, 4]
    for times in (1, 2):
        graph.replay()
        assert read(x)[1] == after(2, 2 * times)
    name = "example.scale_add" if ON_GPU else "probe.slow"
    assert graph.nodes == (name, name)
    graph.close()


def case_native_code_can_ask_whether_a_stream_captures() -> None:
    side = rr.Stream()
    asked = stream_cases.probe.probe_is_capturing
    with rr.Graph.capture(side):
        assert (asked(side.id), asked(0), asked(-1), asked(1 << 20)) == (1, 0, 0, 0)
    assert asked(side.id) == 0


def case_new_contents_are_seen() -> None:
    x, y = tensor(), tensor()
    with rr.Graph.capture(rr.Stream()) as graph:
        y.copy_from(x)
        add(y, 3)
    for value in (5.0, 7.0):
        x.copy_from(np.full(4, value, np.float32))
        rr.synchronize()
        graph.replay()
        assert read(y) == [after(value)] * 4
    assert graph.nodes[0] == "copy"


def case_copies_on_the_device_are_captured() -> None:
    x = rr.Tensor.from_numpy(np.arange(12, dtype=np.float32).reshape(3, 4), copy=True)
    rr.synchronize()
    with rr.Graph.capture() as graph:
        turned = x.permute(1, 0).contiguous()
        again = turned.copy()
        part = x.slice(1, 1, 4, 2).contiguous()
    before = np.arange(12, dtype=np.float32).reshape(3, 4)
    for _ in range(2):
        graph.replay()
        rr.synchronize()
        assert (turned.numpy() == before.T).all() and (again.numpy() == before.T).all()
        assert (part.numpy() == before[:, 1::2]).all()
        before = before + 100
        x.copy_from(before)


def case_memory_stays_until_the_graph_is_closed() -> None:
    gc.collect()
    rr.synchronize()
    start = rr.memory_stats()["allocated"]
    x, out = tensor(*[1.0] * 3000), rr.empty(3000, "float32")
    with rr.Graph.capture() as graph:
        middle = x.copy()
        addresses = {middle.data_ptr, x.data_ptr}
        add_view = middle.slice(0, 1000, 1256)
        add(add_view, 3)
        out.copy_from(middle)
        del middle, add_view
        taken = [rr.empty(3000, "float32") for _ in range(4)]
        assert not addresses & {each.data_ptr for each in taken}
    del taken, x
    gc.collect()
    taken = [tensor(*[0.0] * 3000) for _ in range(4)]
    assert not addresses & {each.data_ptr for each in taken}
    graph.replay()
    result = read(out)
    assert result[:1000] == [1] * 1000 and result[1000] == after(1) and result[1256] == 1
    assert all(read(each) == [0] * 3000 for each in taken)
    del taken, out
    gc.collect()
    rr.synchronize()
    assert rr.memory_stats()["allocated"] >= start + 3 * 12000
    graph.close()
    rr.synchronize()
    assert rr.memory_stats()["allocated"] == start


def case_memory_of_numpy_stays() -> None:
    if ON_GPU:
        return
    array = np.ones(4, np.float32)
    references = sys.getrefcount(array)
    x = rr.Tensor.from_numpy(array, copy=False)
    with rr.Graph.capture() as graph:
        add(x.slice(0, 1, 3), 3)
    del x
    gc.collect()
    assert sys.getrefcount(array) > references
    graph.replay()
    rr.synchronize()
    assert array.tolist() == [1, 4, 4, 1]
    graph.close()
    assert sys.getrefcount(array) == references


def case_an_update_changes_arguments() -> None:
    x, y = tensor(), tensor()
    with rr.Graph.capture() as graph:
        add(x, 3)
    with rr.Graph.capture() as other:
        add(y, 5)
    graph.update(other)
    graph.update(graph)
    graph.replay()
    assert read(x) == [1, 2, 3, 4] and read(y)[1] == after(2, by=5)
    other.close()
    graph.replay()
    assert read(y)[1] == after(2, 2, by=5)


def case_an_update_needs_the_same_work() -> None:
    x, y = tensor(), tensor()
    with rr.Graph.capture() as graph:
        add(x, 3)
    with rr.Graph.capture() as longer:
        add(x, 3)
        add(x, 3)
    with rr.Graph.capture() as different:
        y.copy_from(x)
    text = error_of(lambda: graph.update(longer))
    assert text.startswith("[graph] update: got a graph of 2 nodes, wanted 1"), text
    text = error_of(lambda: graph.update(different))
    assert text.startswith("[graph] update: node 0 of the other graph is copy, wanted "), text
    graph.replay()
    assert read(x)[1] == after(2)


def case_an_update_while_replays_are_queued() -> None:
    x, y = tensor(), tensor()
    with rr.Graph.capture() as graph:
        add(x, 3)
    for _ in range(3):
        with rr.Graph.capture() as other:
            add(y, 3)
        graph.replay()
        graph.update(other)
        other.close()
        del other
        graph.replay()
        with rr.Graph.capture() as other:
            add(x, 3)
        graph.update(other)
    assert read(x)[1] == after(2, 3) and read(y)[1] == after(2, 3)


def case_forbidden_in_capture() -> None:
    x, y, side = tensor(), tensor(), rr.Stream()
    event, passed = rr.Event(), rr.Event()
    passed.record(side)
    target = rr.Stream()

    def elsewhere() -> None:
        with rr.stream(side):
            add(y, 3)

    forbidden: dict[str, Callable[[], object]] = {
        "synchronize: stream": target.synchronize,
        "synchronize": rr.synchronize,
        "query": target.query,
        "record_event": lambda: event.record(target),
        "wait_event": lambda: target.wait_event(passed),
        "wait_stream": lambda: target.wait_stream(side),
        "wait_stream: ": lambda: side.wait_stream(target),
        "numpy": x.numpy,
        "repr": lambda: repr(x),
        "__dlpack__": lambda: x.__dlpack__(),
        "copy_from": lambda: x.copy_from(np.zeros(4, np.float32)),
        "copy_to": lambda: x.copy_to(np.zeros(4, np.float32)),
        "from_numpy": lambda: rr.Tensor.from_numpy(np.zeros(4)),
        "from_dlpack": lambda: rr.from_dlpack(np.zeros(4)),
        "empty_cache": rr.empty_cache,
        "capture: this thread captures stream": lambda: rr.Graph.capture(side).__enter__(),
        "example.scale_add: this thread" if ON_GPU else "probe.slow: this thread": elsewhere,
        "replay": lambda: done.replay(),
        "nodes": lambda: graph.nodes,
        "update": lambda: done.update(graph),
    }  # fmt: skip
    with rr.Graph.capture() as done:
        add(y, 3)
    with rr.Graph.capture(target) as graph:
        add(x, 3)
        for name, call in forbidden.items():
            text = error_of(call)
            assert text.startswith(f"[graph] {name}"), (name, text)
    graph.replay()  # what was refused has changed nothing
    assert read(x)[1] == after(2) and read(y) == [1, 2, 3, 4]
    assert len(graph.nodes) == 1


def case_a_number_for_the_host_is_refused() -> None:
    if ON_GPU:
        return
    import ctypes

    target, part, total = tensor(), tensor(), ctypes.c_double(-1)
    error = stream_cases.Error()
    addresses = (target._view_address(), part._view_address())
    with rr.Graph.capture() as graph:
        code = stream_cases.probe.probe_list(*addresses, ctypes.byref(total), ctypes.byref(error))
        assert code != 0
        assert stream_cases.probe.probe_list(*addresses, None, ctypes.byref(error)) == 0
    assert b"[graph] probe.list gives a number back to the host" in error.message
    graph.replay()  # the arguments were copied deeply: probe_list scribbles over its own
    assert read(target) == [1 + 3 + 2100, 2 + 6 + 2100, 3 + 9 + 2100, 4 + 12 + 2100]


def case_an_exception_ends_the_capture() -> None:
    x, target = tensor(), rr.Stream()
    kept = []
    try:
        with rr.Graph.capture(target) as graph:
            kept.append(graph)
            add(x, 3)
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert kept[0].closed and rr.current_stream().id == 0
    assert "closed" in error_of(kept[0].replay)
    target.synchronize()
    assert read(x) == [1, 2, 3, 4]
    with rr.stream(target):
        add(x, 3)
    assert read(x)[1] == after(2)
    with rr.Graph.capture(target) as graph:
        add(x, 3)
    graph.replay()
    assert read(x)[1] == after(2, 2)


def case_a_closed_graph_is_refused() -> None:
    x = tensor()
    with rr.Graph.capture() as graph:
        add(x, 3)
    with rr.Graph.capture() as other:
        add(x, 3)
    graph.replay()
    graph.close()
    graph.close()
    assert graph.closed and repr(graph) == "Graph(closed)"
    assert error_of(graph.replay).startswith("[graph] replay: the graph is closed")
    assert "closed" in error_of(lambda: graph.nodes)
    assert "closed" in error_of(lambda: other.update(graph))
    assert read(x)[1] == after(2)


def case_wrong_types_are_refused() -> None:
    x = tensor()
    with rr.Graph.capture() as graph:
        add(x, 3)
    for call in (
        lambda: graph.replay(0),
        lambda: graph.update(None),
        lambda: rr.Graph.capture("0").__enter__(),
    ):
        assert error_of(call).startswith("[graph] ")  # type: ignore[arg-type]
    closed = rr.Stream()
    closed.close()
    assert "closed" in error_of(lambda: graph.replay(closed))
    assert "closed" in error_of(lambda: rr.Graph.capture(closed).__enter__())


def case_two_threads_capture_two_streams() -> None:
    results: list[list[float]] = []

    def work(value: float) -> None:
        x = tensor(value, value)
        with rr.Graph.capture(rr.Stream()) as graph:
            time.sleep(0.02)
            add(x, 3)
        for _ in range(2):
            graph.replay()
        rr.current_stream().synchronize()
        results.append([float(each) for each in x.numpy()])

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(results) == [[after(i, 2)] * 2 for i in range(4)], results


def case_another_thread_cannot_use_a_captured_stream() -> None:
    target, x, y = rr.Stream(), tensor(), tensor()
    texts: list[str] = []

    def launch() -> None:
        with rr.stream(target):
            add(y, 3)

    def work() -> None:
        texts.append(error_of(launch))
        texts.append(error_of(lambda: rr.Graph.capture(target).__enter__()))
        texts.append(error_of(target.synchronize))
        add(y, 3)  # its own stream
        rr.current_stream().synchronize()

    with rr.Graph.capture(target) as graph:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        add(x, 3)
    assert ": another thread captures stream" in texts[0], texts
    assert texts[1].startswith("[graph] capture: another thread captures stream"), texts
    assert texts[2].startswith("[graph] synchronize: stream"), texts
    assert len(graph.nodes) == 1 and read(y)[1] == after(2)


def case_replays_on_several_streams_follow_each_other() -> None:
    x, streams = tensor(), [rr.Stream() for _ in range(3)]
    with rr.Graph.capture() as graph:
        for _ in range(3):
            add(x, 2)
    for i in range(6):
        graph.replay(streams[i % 3])
    assert read(x)[1] == after(2, 18, 2)


def case_a_graph_without_work() -> None:
    with rr.Graph.capture() as graph:
        rr.empty(10, "float32")
    graph.replay()
    rr.synchronize()
    assert graph.nodes == ()


def case_closing_waits_for_replays() -> None:
    x = tensor()
    address = x.data_ptr
    y = rr.empty(4, "float32")
    with rr.Graph.capture() as graph:
        for _ in range(20):
            add(x, 1)
        y.copy_from(x)
    del x
    graph.replay()
    graph.close()
    z = tensor(0, 0, 0, 0)
    assert address and read(y)[1] == after(2, 20, 1) and read(z) == [0] * 4


def case_an_error_in_a_replay_names_the_node() -> None:
    if ON_GPU:
        return
    x, wrong = tensor(), rr.empty(4, "float64")
    with rr.Graph.capture() as graph:
        add(x, 3)
        add(wrong, 3)
        add(x, 3)

    def replay() -> None:
        graph.replay()
        rr.default_stream().synchronize()

    text = error_of(replay)
    assert "[graph] node 1 of 3: [probe.slow] x: got dtype float64" in text, text
    assert read(x)[1] == 5
    assert "node 1 of 3" in error_of(replay)


def case_a_forked_child() -> None:
    x = tensor()
    with rr.Graph.capture() as graph:
        add(x, 3)
    child = os.fork()
    if child == 0:
        try:
            graph.replay()
            good = not ON_GPU and read(x)[1] == after(2)
        except rr.RudaRuntimeError as error:
            good = ON_GPU and "forked after its parent" in str(error)
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    graph.replay()
    assert read(x)[1] == after(2)


def case_graphs_may_be_open_when_the_process_ends() -> None:
    x = tensor()
    with rr.Graph.capture() as graph:
        add(x, 3)
    graph.replay()
    if not hasattr(rr, "kept_to_the_end"):
        rr.kept_to_the_end = (x, graph)


CASES = {name[5:]: body for name, body in list(globals().items()) if name.startswith("case_")}


def main() -> None:
    stream_cases.probe = stream_cases.load(sys.argv[1])
    results = {}
    for name, body in CASES.items():
        try:
            body()
            results[name] = ""
        except Exception:
            results[name] = traceback.format_exc()
        gc.collect()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
