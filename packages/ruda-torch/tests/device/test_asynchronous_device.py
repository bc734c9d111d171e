"""Asynchronous dispatch through torch: the same scripts in a process of each mode."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch

import ruda_runtime
import ruda_torch  # noqa: F401 - leads the number of threads to torch

START = """
import time
import torch, ruda_torch, ruda_runtime
torch.manual_seed(0)
queued = ruda_runtime._native.asynchronous()
def ruda(*shape, scale=0.05): return (torch.randn(*shape) * scale).to("ruda:0")
big = ruda(1200, 1200)
def busy():  # tens of milliseconds of queued work
    return torch.mm(torch.mm(big, big), big)
"""


def run(code: str, mode: str, **variables: str) -> str:
    kept = {k: v for k, v in os.environ.items() if k not in ("RUDA_ASYNC", "RUDA_TORCH_ASYNC")}
    done = subprocess.run(
        [sys.executable, "-c", START + textwrap.dedent(code)],
        env={**kept, "RUDA_TORCH_ASYNC": mode, "RUDA_TARGET": "host", **variables},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


# Runs scripts, each from the same seed, and prints what each of them printed or how it failed.
EACH = """
import contextlib, io, json, sys, traceback
results = {{}}
for name, code in json.loads({scripts!r}).items():
    out = io.StringIO()
    torch.manual_seed(1)
    try:
        with contextlib.redirect_stdout(out):
            exec(code, dict(globals()))
        results[name] = out.getvalue()
    except Exception:
        results[name] = traceback.format_exc()
json.dump(results, sys.stdout)
"""


def run_each(scripts: dict[str, str], mode: str) -> dict[str, str]:
    dedented = {name: textwrap.dedent(code) for name, code in scripts.items()}
    results: dict[str, str] = json.loads(run(EACH.format(scripts=json.dumps(dedented)), mode))
    return results


SAME = {
    "temporaries freed while queued": """
        x, w = ruda(300, 400), ruda(400, 400)
        for _ in range(40):
            x = torch.ops.ruda.rms_norm(torch.ops.ruda.silu_mul(x @ w, x) * 3 + x, None, 1e-6)
        print(x.double().sum().item(), x[3, 4].item())
    """,
    "reuse across sizes": """
        total = torch.zeros((), device="ruda:0")
        for size in [64, 300, 65, 700, 64, 300] * 6:
            a = ruda(size, size)
            total += (a @ a @ a).sum()
        print(total.item())
    """,
    "gradients on a side stream": """
        w = ruda(300, 300).requires_grad_()
        x = ruda(200, 300)
        side = torch.ruda.Stream()
        side.wait_stream(torch.ruda.current_stream())
        with torch.ruda.stream(side):
            loss = (torch.ops.ruda.silu_mul(x @ w, x) @ w).square().sum()
        torch.ruda.current_stream().wait_stream(side)
        loss.backward()
        torch.ruda.synchronize()
        print(loss.item(), w.grad.double().sum().item(), w.grad[5, 7].item())
    """,
    "backward on a stream that has gone": """
        w = ruda(300, 300).requires_grad_()
        side = torch.ruda.Stream()
        with torch.ruda.stream(side):
            loss = (w @ w).square().sum()
        side.synchronize()
        del side
        loss.backward()
        torch.ruda.synchronize()
        print(w.grad.double().sum().item())
    """,
    "events order streams": """
        one, two = torch.ruda.Stream(), torch.ruda.Stream()
        x = ruda(400, 400)
        for stream in (one, two):
            ruda_torch.record_stream(x, stream)
        for _ in range(10):
            with torch.ruda.stream(one):
                y = x @ x
            event = one.record_event()
            two.wait_event(event)
            with torch.ruda.stream(two):
                x = torch.ops.ruda.rms_norm(torch.ops.ruda.silu_mul(y, x), None, 1e-6)
            ruda_torch.record_stream(y, two)
            one.wait_stream(two)
            ruda_torch.record_stream(x, one)
        torch.ruda.synchronize()
        print(x.double().abs().sum().item())
    """,
    "an optimiser": """
        model = torch.nn.Linear(300, 300).to("ruda:0")
        optimizer = ruda_torch.AdamW(model.parameters(), lr=1e-2)
        for _ in range(5):
            loss = model(ruda(50, 300)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(loss.item())
    """,
    "copies and views": """
        x = ruda(500, 500)
        y = x @ x
        z = y.t().contiguous()
        host = y.to("cpu", non_blocking=True)
        y.zero_()
        print(host.double().sum().item(), z.double().sum().item(), y.sum().item())
        print((x @ x).numpy(force=True).sum(), (x @ x).tolist()[3][4], bool((x @ x).any()))
    """,
    "storages that grow": """
        x = ruda(500, 500)
        y = x @ x
        y.resize_(600, 500)
        print(y[:500].sum().item(), y.shape)
        z = x @ x
        z.set_(z.untyped_storage(), 0, (520, 500), (500, 1))
        print(z[:500].sum().item(), z.shape)
        z = x @ x
        z.untyped_storage().resize_(2_000_000)
        print(z.sum().item())
    """,
    "random numbers": """
        x = ruda(500, 500)
        y = x @ x
        y.normal_()
        print(y.sum().item(), torch.nn.functional.dropout(x @ x, 0.5).sum().item())
        print(torch.multinomial((x @ x).softmax(-1), 3, replacement=True).sum().item())
    """,
}


@pytest.fixture(scope="module")
def results() -> tuple[dict[str, str], dict[str, str]]:
    return run_each(SAME, "0"), run_each(SAME, "1")


@pytest.mark.parametrize("name", SAME)
def test_the_results_are_those_of_synchronous_dispatch(
    results: tuple[dict[str, str], dict[str, str]], name: str
) -> None:
    wanted, found = (each[name] for each in results)
    assert wanted.strip() and "nan" not in wanted and "Traceback" not in wanted, wanted
    assert found == wanted


ONLY = {
    "a product returns before its work": """
        busy()
        assert not torch.ruda.current_stream().query()
        torch.ruda.synchronize()
        assert torch.ruda.current_stream().query()
    """,
    "reading waits": """
        wanted = busy().cpu()
        for read in (lambda t: t.cpu(), lambda t: t.clone().cpu(), lambda t: (-t).neg().cpu()):
            assert torch.equal(read(busy()), wanted)
        assert busy()[5, 6].item() == wanted[5, 6].item()
    """,
    "events": """
        begin, end = (torch.ruda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        busy()
        end.record()
        assert not end.query()
        end.synchronize()
        assert end.query() and begin.elapsed_time(end) > 1
    """,
    "errors surface once": """
        for wait in (torch.ruda.synchronize, torch.ruda.current_stream().synchronize,
                     lambda: torch.zeros(2, device="ruda:0"), lambda: big.cpu()):
            torch.ops.ruda.silu_mul(ruda(2, 3), ruda(2, 4))
            time.sleep(0.05)
            try:
                wait()
            except ValueError as error:
                assert "silu_mul.forward" in str(error) and "queued work of stream 0" in str(error)
            else:
                raise AssertionError("no error")
            wait()
    """,
    "a stream has a handle": """
        assert torch.ruda.Stream().native_handle != 0
    """,
}


@pytest.fixture(scope="module")
def outputs() -> dict[str, str]:
    return run_each(ONLY, "1")


@pytest.mark.parametrize("name", ONLY)
def test_what_asynchronous_dispatch_adds(outputs: dict[str, str], name: str) -> None:
    assert outputs[name] == ""


def test_the_process_ends_with_work_in_flight() -> None:
    assert run("busy(); busy(); print('end')", "1") == "end\n"


@pytest.mark.parametrize("first", ["torch", "ruda_runtime"])
def test_both_packages_have_one_number_of_threads(first: str) -> None:
    before = torch.get_num_threads()
    setters = [torch.set_num_threads, ruda_runtime.set_num_threads]
    try:
        for number, setter in zip(
            (3, 1, 2), setters * 2 if first == "torch" else setters[::-1] * 2
        ):
            setter(number)
            assert torch.get_num_threads() == ruda_runtime.get_num_threads() == number
    finally:
        torch.set_num_threads(before)


def test_an_explicit_number_holds_for_both() -> None:
    code = "print(torch.get_num_threads(), ruda_runtime.get_num_threads())"
    assert run(code, "0", RUDA_NUM_THREADS="3") == "3 3\n"


def test_threads_do_not_change_results_of_queued_work() -> None:
    code = """
        x, w = ruda(300, 400), ruda(400, 400)
        for _ in range(10):
            x = torch.ops.ruda.rms_norm(torch.ops.ruda.silu_mul(x @ w, x) + x, None, 1e-6)
        print(hash(x.cpu().numpy().tobytes()))  # a sum of ATen's depends on its threads
    """
    assert (
        len(
            {run(code, mode, RUDA_NUM_THREADS=n, PYTHONHASHSEED="0") for mode in "01" for n in "12"}
        )
        == 1
    )


def test_synchronous_dispatch_is_the_default() -> None:
    code = "busy(); print(queued, ruda_torch.current_stream().query())"
    assert run(code, "") == "False True\n"
