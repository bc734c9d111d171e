"""Device memory, page-locked memory and copies."""

from __future__ import annotations

from collections.abc import Callable

Passes = Callable[..., str]


def test_elements_survive_the_way_to_the_gpu_and_back(passes: Passes) -> None:
    passes(
        """
        names = ["float32", "float16", "bfloat16", "float64", "int8", "int16", "int32", "int64",
                 "uint8", "uint32", "bool"]
        for name in names:
            dtype = rr.empty(1, name).dtype
            array = np.arange(60).reshape(3, 4, 5).astype(dtype)
            x = rr.Tensor.from_numpy(array)
            assert x.device == rr.devices()[0] and x.dtype == dtype
            assert (x.numpy() == array).all() and (x.copy().numpy() == array).all()
            for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2), (2, 0, 1), (0, 2, 1)):
                view = x.permute(order)
                wanted = array.transpose(order)
                assert (view.numpy() == wanted).all(), (name, order)
                assert (view.contiguous().numpy() == wanted).all(), (name, order)
            part = x.slice(2, 1, 5, 2).slice(1, 1, 3)
            assert (part.numpy() == array[:, 1:3, 1:5:2]).all()
            assert (part.contiguous().view(-1).numpy() == array[:, 1:3, 1:5:2].ravel()).all()
            assert (np.asarray(x) == array).all()
        empty = rr.empty((0, 3))
        assert empty.numpy().shape == (0, 3) and empty.copy().shape == (0, 3)
        strange = [np.arange(9.0)[::-1], np.arange(12.0).reshape(3, 4).T, np.array(3.0),
                   np.arange(4, dtype=">i4")]
        for array in strange:
            assert (rr.Tensor.from_numpy(array).numpy() == array).all()
        assert "cannot share" in error_of(lambda: rr.Tensor.from_numpy(np.ones(2), copy=False))
        assert "needs a copy" in error_of(lambda: np.asarray(rr.empty(2), copy=False), ValueError)
        """
    )


def test_statistics(passes: Passes) -> None:
    passes(
        """
        assert rr.memory_stats()["allocated"] == 0
        x, y = rr.empty(1000), rr.empty((10, 10), "float64")
        stats = rr.memory_stats()
        assert (stats["allocated"], stats["count"], stats["allocations"]) == (4800, 2, 2)
        assert stats["reserved"] >= 4800 and stats["peak_allocated"] == 4800
        del x
        stats = rr.memory_stats()
        assert (stats["allocated"], stats["count"], stats["peak_allocated"]) == (800, 1, 4800)
        rr.reset_peak_memory_stats()
        assert rr.memory_stats()["peak_allocated"] == 800
        del y
        rr.empty_cache()
        assert rr.memory_stats()["reserved"] == 0
        """
    )


def test_running_out_of_memory_names_the_largest_holders_and_goes_on(passes: Passes) -> None:
    passes(
        """
        kept = [rr.empty(n << 20, "uint8") for n in (16, 8, 4)]
        text = error_of(lambda: rr.empty(64 << 20, "uint8"), rr.OutOfMemoryError)
        assert "asked for 64.00 MiB (67108864 bytes)" in text and "free: " in text
        assert "largest holders: 16.00 MiB (tensor), 8.00 MiB (tensor), 4.00 MiB" in text
        assert rr.memory_stats()["out_of_memory"] == 1
        del kept
        assert rr.empty(40 << 20, "uint8").nbytes == 40 << 20  # what was freed serves again
        """,
        RUDA_DOUBLE_MEMORY=str(64 << 20),
    )


def test_memory_freed_behind_queued_work_is_waited_for(passes: Passes) -> None:
    passes(
        """
        streams = [rr.Stream() for _ in range(4)]
        for step in range(20):
            with rr.stream(streams[step % 4]):
                x = rr.Tensor.from_numpy(np.full(6 << 20, step, np.uint8))
                y = x.copy()
                del x
        assert y.numpy().max() == 19 and rr.memory_stats()["out_of_memory"] == 0
        """,
        RUDA_ASYNC="1",
        RUDA_DOUBLE_DELAY_US="3000",
        RUDA_DOUBLE_MEMORY=str(32 << 20),
    )


def test_running_out_of_memory_inside_a_capture(passes: Passes) -> None:
    passes(
        """
        x = rr.Tensor.from_numpy(np.arange(4, dtype=np.float32))
        y = rr.empty(4)
        rr.synchronize()
        with rr.Graph.capture(rr.Stream()) as graph:
            y.copy_from(x)
            text = error_of(lambda: rr.empty(64 << 20, "uint8"), rr.OutOfMemoryError)
            assert "asked for 64.00 MiB" in text
        graph.replay()
        rr.synchronize()
        assert y.numpy().tolist() == [0, 1, 2, 3] and graph.nodes == ("copy",)
        """,
        RUDA_DOUBLE_MEMORY=str(32 << 20),
    )


def test_the_memory_limit_holds_on_the_gpu(passes: Passes) -> None:
    passes(
        """
        x = rr.empty(6 << 20, "uint8")
        text = error_of(lambda: rr.empty(6 << 20, "uint8"), rr.OutOfMemoryError)
        assert "of RUDA_MEMORY_LIMIT=10.00 MiB" in text
        assert rr.devices()[0].memory_total == 10 << 20
        del x
        rr.empty(6 << 20, "uint8")
        """,
        RUDA_MEMORY_LIMIT=str(10 << 20),
    )


def test_poisoned_memory_holds_nan(passes: Passes) -> None:
    passes("assert np.isnan(rr.empty(100).numpy()).all()", RUDA_POISON="1")


def test_pinned_arrays(passes: Passes) -> None:
    code = """
    array = rr.pinned_empty((2, 300))
    array[:] = np.arange(600).reshape(2, 300)
    assert rr._native.pinned_bytes() == 4096
    x = rr.Tensor.from_numpy(array)
    back = rr.pinned_empty((2, 300))
    x.copy_to(back)
    rr.current_stream().synchronize()
    assert (back == array).all()
    back += 1
    x.copy_from(back)
    assert (x.numpy() == array + 1).all()
    del back
    again = rr.pinned_empty(1000)  # the same block
    assert rr._native.pinned_bytes() == 8192
    texts = [error_of(lambda: x.copy_from(np.zeros(3, np.float32))),
             error_of(lambda: x.copy_to(np.zeros((2, 300)))),
             error_of(lambda: x.copy_from(np.zeros((300, 2), np.float32).T)),
             error_of(lambda: x.permute(1, 0).copy_from(np.zeros((300, 2), np.float32)))]
    for text, words in zip(texts, ("wanted float32[2, 300]", "got float64[2, 300]", "row-major",
                                   "wanted a contiguous one")):
        assert words in text, text
    assert rr.pinned_empty((0, 3)).shape == (0, 3)
    """
    passes(code)
    passes(code, RUDA_ASYNC="1", RUDA_DOUBLE_DELAY_US="2000")


def test_uploads_of_ordinary_memory_do_not_wait_and_may_change_it_at_once(passes: Passes) -> None:
    passes(
        """
        source = np.zeros(1000, np.float32)
        made = []
        for i in range(50):
            source[:] = i
            made.append(rr.Tensor.from_numpy(source))
        source[:] = -1
        assert [float(x.numpy()[0]) for x in made] == list(range(50))
        """,
        RUDA_ASYNC="1",
        RUDA_DOUBLE_DELAY_US="500",
    )


def test_dlpack(passes: Passes) -> None:
    passes(
        """
        array = np.arange(12, dtype=np.float32).reshape(3, 4)
        x = rr.Tensor.from_numpy(array)
        assert x.__dlpack_device__() == (2, 0)
        same, fresh = rr.from_dlpack(x), rr.from_dlpack(x, copy=True)
        assert same.data_ptr == x.data_ptr and fresh.data_ptr != x.data_ptr
        del x
        assert (same.numpy() == array).all() and (fresh.numpy() == array).all()
        view = rr.from_dlpack(same.permute(1, 0).slice(0, 1, 3))
        assert (view.numpy() == array.T[1:3]).all()
        assert (np.from_dlpack(same, device="cpu") == array).all()
        uploaded = rr.from_dlpack(array[:, ::2])
        assert uploaded.device.target == "cuda" and (uploaded.numpy() == array[:, ::2]).all()
        assert "host memory" in error_of(lambda: rr.from_dlpack(array, copy=False))
        assert "device type 2" not in str(same)
        for stream in (None, -1, 1, 2, rr.Stream().cuda_stream):
            same.__dlpack__(stream=stream)
        assert "wanted None, -1, 1, 2" in error_of(lambda: same.__dlpack__(stream=0), ValueError)
        """
    )


def test_the_double_finds_nothing_wrong_in_random_work(passes: Passes) -> None:
    passes(
        """
        import random
        random.seed(5)
        streams = [rr.default_stream(), *(rr.Stream() for _ in range(6))]
        live = []
        for step in range(1500):
            stream = random.choice(streams)
            with rr.stream(stream):
                if len(live) < 20 and random.random() < 0.6:
                    value = random.randrange(1000)
                    array = np.full(random.randrange(1, 3000), value, np.float32)
                    live.append((rr.Tensor.from_numpy(array), value, stream))
                elif live:
                    x, value, made = live.pop(random.randrange(len(live)))
                    stream.wait_stream(made)
                    rr._native.record_stream(x.data_ptr, stream.id)
                    y = x.copy()
                    del x
                    if random.random() < 0.3:
                        assert (y.numpy() == value).all(), step
        rr.synchronize()
        assert violations() == [], violations()[:3]
        """,
        RUDA_ASYNC="1",
        RUDA_DOUBLE_DELAY_US="100",
    )
