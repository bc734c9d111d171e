"""Choosing the cuda target, and what it says when it cannot be used."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

Script = Callable[..., subprocess.CompletedProcess[str]]
SAY = "print(error_of(rr.devices, rr.DeviceError))"


def test_the_device_says_what_it_is(passes: Callable[..., str]) -> None:
    out = passes(
        """
        (device,) = rr.devices()
        assert str(device) == "cuda:0" and device.target == "cuda"
        assert "double" in device.name and device.driver_version == "13.4"
        assert device.compute_capability == (9, 0) and device.warp_size == 32
        assert device.multiprocessors > 1 and device.max_threads == 1024
        assert device.shared_memory_per_block == 232448
        assert device.memory_total == 1 << 30 and 0 < device.memory_free <= device.memory_total
        assert rr.device_of("cuda") == rr.device_of("cuda:0") == rr.device_of() == device
        print(error_of(lambda: rr.device_of("host")))
        """,
        RUDA_DOUBLE_MEMORY=str(1 << 30),
    )
    assert out == "[device] got 'host', wanted one of: cuda:0"


@pytest.mark.parametrize(
    ("capability", "names"),
    [
        ("7.5", ["cooperative_launch", "fp16", "tensor_cores"]),
        ("8.6", ["bf16", "cooperative_launch", "fp16", "tensor_cores"]),
        ("8.9", ["bf16", "cooperative_launch", "fp16", "fp8", "tensor_cores"]),
        ("12.0", ["bf16", "cooperative_launch", "fp16", "fp8", "tensor_cores"]),
    ],
)
def test_capabilities_follow_the_architecture(
    passes: Callable[..., str], capability: str, names: list[str]
) -> None:
    code = "print(sorted(rr.devices()[0].capabilities))"
    assert passes(code, RUDA_DOUBLE_COMPUTE_CAPABILITY=capability) == str(names)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"RUDA_DOUBLE_DRIVER_VERSION": "11080"},
         ["supports CUDA 11.8, wanted CUDA 12.0 or newer", "install a newer NVIDIA driver"]),
        ({"RUDA_DOUBLE_DEVICES": "0"},
         ["no NVIDIA GPU is visible (CUDA_VISIBLE_DEVICES is not set)", "nvidia-smi"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, ["no NVIDIA GPU is visible (CUDA_VISIBLE_DEVICES is '')"]),
        ({"RUDA_DOUBLE_COMPUTE_CAPABILITY": "7.0"},
         ["has compute capability 7.0, wanted at least 7.5"]),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(
    passes: Callable[..., str], settings: dict[str, str], words: list[str]
) -> None:
    text = passes(SAY, **settings)
    assert text.startswith("[RUDA_TARGET] got 'cuda', but ")
    for each in words:
        assert each in text, text


def test_the_driver_variable_is_checked(passes: Callable[..., str]) -> None:
    text = passes("print(error_of(rr.devices, rr.RudaValueError))", RUDA_CUDA_DRIVER="fake")
    assert text.startswith("[RUDA_CUDA_DRIVER] got 'fake', wanted 'double'")


def test_auto_never_takes_the_double(script: Script) -> None:
    done = script("print(rr.devices()[0])", RUDA_TARGET="auto")
    assert done.stdout == "host:0\n"
    assert "the driver double is used with RUDA_TARGET=cuda only" in done.stderr
    code = """
    from ruda_runtime.testing import load_driver_double
    load_driver_double()
    print(rr.devices()[0])
    """
    done = script(code, RUDA_TARGET="auto", RUDA_CUDA_DRIVER="")
    assert done.stdout == "host:0\n" and "RUDA_TARGET=cuda only" in done.stderr


def test_a_forked_child_is_told_why_it_cannot_use_the_gpu(script: Script) -> None:
    code = """
    x = rr.Tensor.from_numpy(np.arange(4, dtype=np.float32))
    side, event, pinned = rr.Stream(), rr.Event(), rr.pinned_empty(4)
    event.record()
    child = os.fork()
    if child == 0:
        uses = [lambda: rr.empty(4), lambda: rr.Tensor.from_numpy(np.ones(3)), x.numpy, x.copy,
                lambda: x.copy_from(np.zeros(4, np.float32)), lambda: x.copy_to(pinned),
                rr.Stream, side.synchronize, rr.synchronize, event.record, event.synchronize,
                lambda: side.wait_event(event), lambda: rr.pinned_empty(4),
                lambda: rr.Graph.capture(side).__enter__()]
        for use in uses:
            text = error_of(use, rr.RudaRuntimeError)
            assert "forked after its parent had started the cuda target" in text, text
            assert "'spawn' or 'forkserver'" in text
        assert event.query() and rr.memory_stats()["count"] >= 1
        del x
        print("child")
        sys.exit(0)  # and ends as every process does
    assert os.waitpid(child, 0)[1] == 0
    print(x.numpy().tolist())
    del pinned  # the double lists what is alive at exit
    """
    done = script(code)
    assert (done.stdout, done.stderr) == ("child\n[0.0, 1.0, 2.0, 3.0]\n", "")


def test_python_and_the_runtime_use_one_context_and_its_streams(passes: Callable[..., str]) -> None:
    pytest.importorskip("cuda.bindings")
    out = passes(
        """
        from cuda.bindings import driver
        side = rr.Stream()
        x = rr.Tensor.from_numpy(np.arange(4, dtype=np.float32))
        status, context = driver.cuCtxGetCurrent()
        assert int(status) == 0 and int(context) != 0
        status, stream_context = driver.cuStreamGetCtx(driver.CUstream(side.cuda_stream))
        assert int(stream_context) == int(context)
        (status,) = driver.cuMemsetD32Async(x.data_ptr, 0, 4, driver.CUstream(side.cuda_stream))
        side.synchronize()
        assert side.__cuda_stream__() == (0, side.cuda_stream)
        print(x.numpy().tolist())
        """
    )
    assert out == "[0.0, 0.0, 0.0, 0.0]"


def test_importing_loads_no_driver_and_no_compiler(passes: Callable[..., str]) -> None:
    out = passes(
        """
        import ruda_runtime.kernel
        heavy = ("triton", "torch", "cuda")
        print([name for name in heavy if name in sys.modules],
              "libcuda" in open("/proc/self/maps").read())
        """
    )
    assert out == "[] False"
