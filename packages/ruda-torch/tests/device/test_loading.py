"""Import: autoload, re-entrance, version and environment checks, forks. Each in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import ruda_torch
from ruda_torch import _settings

PACKAGE = Path(ruda_torch.__file__).parent


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "RUDA_TARGET": "host", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def lines(code: str, **environment: str) -> list[str]:
    done = run(code, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


# The entry point as an installed wheel has it: a source checkout has no distribution metadata.
AUTOLOAD = """
    import importlib.metadata as metadata
    point = metadata.EntryPoint("ruda", "ruda_torch:_autoload", "torch.backends")
    original = metadata.entry_points
    metadata.entry_points = lambda **given: (
        [point] if given == {"group": "torch.backends"} else original(**given)
    )
    import sys, warnings
"""


def test_import_torch_loads_the_device() -> None:
    assert lines(
        AUTOLOAD
        + """
    import torch
    print("ruda_torch" in sys.modules, torch.ones(2, device="ruda").device)
    sys.modules["ruda_torch"]._autoload()
    import ruda_torch
    print(ruda_torch.is_available(), torch.ruda.is_initialized())
    """
    ) == ["True ruda:0", "True True"]


def test_importing_the_package_first_re_enters_harmlessly() -> None:
    assert lines(
        AUTOLOAD
        + """
    import ruda_torch
    import torch
    print(torch.empty(2, device="ruda").device, torch.ruda.device_count())
    """
    ) == ["ruda:0 1"]


def test_a_failing_autoload_leaves_torch_usable_and_the_cause_visible() -> None:
    out = lines(
        AUTOLOAD
        + """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import torch
    print([str(w.message) for w in caught if "ruda" in str(w.message)])
    print(torch.ones(2).sum().item(), hasattr(torch, "ruda"))
    try:
        import ruda_torch
    except ValueError as error:
        print(error)
    """,
        RUDA_TORCH_ASYNC="2",
    )
    assert "torch works without it: [RUDA_TORCH_ASYNC] got '2'" in out[0]
    assert out[1] == "2.0 False"
    assert "wanted '0' or '1'" in out[2]


def test_a_failing_autoload_where_warnings_are_errors_leaves_no_hollow_package() -> None:
    assert lines(
        AUTOLOAD
        + """
    warnings.filterwarnings("error", message="the ruda device")
    try:
        import torch
    except RuntimeError as error:
        print("RUDA_TORCH_ASYNC" in str(error.__cause__), "ruda_torch" in sys.modules)
    """,
        RUDA_TORCH_ASYNC="2",
    ) == ["True False"]


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (("yes", ""), "got 'yes', wanted '0' or '1'"),
        (("0", "1"), "while RUDA_ASYNC is '1'"),
        (("1", "0"), "while RUDA_ASYNC is '0'"),
        (("", ""), False),
        (("0", ""), False),
        (("0", "0"), False),
        (("1", ""), True),
        (("", "1"), True),
        (("1", "1"), True),
    ],
)
def test_how_work_is_dispatched(
    monkeypatch: pytest.MonkeyPatch, values: tuple[str, str], wanted: bool | str
) -> None:
    monkeypatch.setenv("RUDA_TORCH_ASYNC", values[0])
    monkeypatch.setenv("RUDA_ASYNC", values[1])
    if isinstance(wanted, str):
        with pytest.raises(ValueError, match=wanted):
            _settings.asynchronous()
    else:
        assert _settings.asynchronous() is wanted


def test_a_library_that_is_not_a_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUDA_TORCH_LIBRARY", "/nowhere.so")
    with pytest.raises(ImportError, match=r"got '/nowhere\.so', which is not a file"):
        _settings.library_path()


def test_an_unknown_target_is_refused_at_import() -> None:
    done = run("import ruda_torch", RUDA_TARGET="gpu", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.returncode != 0
    assert "got 'gpu', wanted one of: auto, cuda, host" in done.stderr.strip().splitlines()[-1]


def test_a_gpu_is_looked_for_at_the_first_use() -> None:
    code = """
    import torch, ruda_torch
    print("imported")
    for _ in range(2):
        try:
            torch.ones(2, device="ruda")
        except ruda_torch._load.ruda_runtime.DeviceError as error:
            print("[RUDA_TARGET] got 'cuda', but" in str(error))
    """
    hidden = {"RUDA_TARGET": "cuda", "CUDA_VISIBLE_DEVICES": ""}
    assert lines(code, **hidden) == ["imported", "True", "True"]


def test_auto_takes_the_host_where_there_is_no_gpu_and_says_so() -> None:
    code = """
    import torch, ruda_torch, ruda_runtime
    torch.ones(2, device="ruda")
    print(*ruda_runtime.devices())
    """
    done = run(code, RUDA_TARGET="auto", CUDA_VISIBLE_DEVICES="")
    assert done.stdout.split() == ["host:0"], done.stderr
    assert "<string>:3: RuntimeWarning: RUDA_TARGET=auto chose the host target" in done.stderr


def test_another_build_of_the_library_is_loaded(tmp_path: Path) -> None:
    (built,) = PACKAGE.glob("_native.*.so")
    copy = tmp_path / built.name
    copy.write_bytes(built.read_bytes())
    assert lines(
        """
        import ruda_torch, torch
        print(ruda_torch._native.__file__, torch.empty(1, device="ruda").device)
        """,
        RUDA_TORCH_LIBRARY=str(copy),
    ) == [f"{copy} ruda:0"]


def test_another_torch_minor_is_refused_before_the_library_is_opened() -> None:
    done = run(
        """
        import torch
        torch.__version__ = "2.14.1+cpu"
        try:
            import ruda_torch
        except ImportError as error:
            print(error)
        import sys
        print("ruda_torch._native" in sys.modules)
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    message, loaded = done.stdout.splitlines()
    assert "built for torch 2.13, got torch 2.14.1+cpu" in message
    assert "python -m pip install 'torch==2.13.*' ruda-torch" in message
    assert loaded == "False"


def test_another_backend_of_the_process_is_named() -> None:
    done = run(
        """
        import torch
        torch.utils.rename_privateuse1_backend("npu")
        import ruda_torch
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert done.returncode != 0
    assert "ImportError: the device backend 'npu' is registered" in done.stderr


def test_another_abi_below_is_refused() -> None:
    done = run(
        """
        import ruda_runtime.abi as abi
        package = abi._packages["ruda-runtime"]
        abi._packages["ruda-runtime"] = abi._Package("0.11.0", {"tensor": 11})
        import ruda_torch
        """
    )
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "AbiMismatch" in last
    assert "0.11.0" in last
    assert "pip install" in last


def test_the_import_starts_no_thread_and_uses_no_device() -> None:
    assert lines(
        """
        import torch
        import os
        before = len(os.listdir("/proc/self/task"))
        import ruda_torch
        print(len(os.listdir("/proc/self/task")) - before, torch.ruda._initialized)
        torch.empty(3, pin_memory=True).pin_memory()
        torch.manual_seed(1)
        torch.ones(2, requires_grad=True).sum().backward()
        print(torch.ruda._initialized)
        torch.empty(1, device="ruda")
        print(torch.ruda._initialized)
        """
    ) == ["0 False", "False", "True"]


def test_forks_before_and_after_the_first_use() -> None:
    assert lines(
        """
        import os, torch, ruda_torch
        if os.fork() == 0:
            print(torch.ones(3).to("ruda").cpu().sum().item(), flush=True)
            os._exit(0)
        os.wait()
        there = torch.ones(3).to("ruda")
        if os.fork() == 0:
            for use in (lambda: torch.empty(1, device="ruda"), lambda: there.cpu(),
                        lambda: there.add_(1)):
                try:
                    use()
                    print("no error", flush=True)
                except RuntimeError as error:
                    print("spawn" in str(error), flush=True)
            torch.manual_seed(3)
            print(torch.ruda._is_in_bad_fork(), torch.ones(2).sum().item(), flush=True)
            os._exit(0)
        os.wait()
        print(there.cpu().sum().item())
        """
    ) == ["3.0", "True", "True", "True", "True 2.0", "3.0"]


def test_spawned_workers_use_the_device() -> None:
    assert lines(
        """
        import torch, ruda_torch
        import multiprocessing as mp
        there = torch.ones(3).to("ruda")
        def main():
            context = mp.get_context("spawn")
            with context.Pool(1) as pool:
                pool.apply(exec, ("import ruda_torch",))
                print(pool.apply(eval, ("__import__('torch').ones(4).ruda().sum().item()",)))
        main()
        """
    ) == ["4.0"]


def test_threads_that_use_the_device_first_at_the_same_time() -> None:
    assert lines(
        """
        import threading, torch, ruda_torch
        barrier = threading.Barrier(8)
        results = []
        def work():
            barrier.wait()
            torch.ruda.init()
            results.append(torch.ones(3, device="ruda").sum().item())
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join(30)
        print(results == [3.0] * 8)
        """
    ) == ["True"]
