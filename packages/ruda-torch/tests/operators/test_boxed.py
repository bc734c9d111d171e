"""The rules of the boxed kernel, one by one."""

from __future__ import annotations

import pytest
import torch

import ruda_torch

D = "ruda"


# ---- (a) new sizes and memory of written arguments move back ------------------------------------


def test_out_of_wrong_size_is_resized() -> None:
    out = torch.empty(0, device=D)
    result = torch.add(torch.ones(3, 4, device=D), 2.0, out=out)
    assert result is out
    assert out.shape == (3, 4) and out.untyped_storage().nbytes() == 48
    assert torch.equal(out.cpu(), torch.full((3, 4), 3.0))


@pytest.mark.filterwarnings("ignore:The number of elements in the out tensor")
def test_resize_is_seen_by_other_views_of_the_storage() -> None:
    base = torch.arange(4.0, device=D)
    view = base.view(2, 2)
    torch.arange(6.0, device=D, out=base)
    assert base.tolist() == [0, 1, 2, 3, 4, 5]
    assert view.tolist() == [[0, 1], [2, 3]]
    assert view.data_ptr() == base.data_ptr()


def test_smaller_out_keeps_its_storage() -> None:
    out = torch.empty(10, device=D)
    pointer = out.data_ptr()
    with pytest.warns(UserWarning, match="resized"):
        torch.mul(torch.ones(4, device=D), 5.0, out=out)
    assert out.data_ptr() == pointer and out.untyped_storage().nbytes() == 40
    assert out.tolist() == [5.0] * 4


def test_out_with_an_offset_and_strides() -> None:
    base = torch.zeros(4, 6, device=D)
    torch.add(torch.ones(4, 3, device=D), 1.0, out=base[:, 1::2])
    assert torch.equal(base.cpu(), torch.tensor([0.0, 2, 0, 2, 0, 2]).expand(4, 6))


def test_several_outputs() -> None:
    x = torch.tensor([3.0, 1.0, 2.0], device=D)
    ordered, indices = torch.empty(0, device=D), torch.empty(0, dtype=torch.long, device=D)
    result = torch.sort(x, out=(ordered, indices))
    assert result[0] is ordered and result[1] is indices
    assert ordered.tolist() == [1, 2, 3] and indices.tolist() == [1, 2, 0]


@pytest.mark.parametrize("count", [1, 5, 40])
def test_lists_are_written_in_place(count: int) -> None:
    tensors = [torch.full((3,), float(i), device=D) for i in range(count)]
    pointers = [t.data_ptr() for t in tensors]
    torch._foreach_add_(tensors, 1.0)
    torch._foreach_mul_(tensors, [torch.full((3,), 2.0, device=D)] * count)
    torch._foreach_addcdiv_(tensors, tensors, [torch.ones(3, device=D)] * count, 0.5)
    assert [t.tolist() for t in tensors] == [[3.0 * (i + 1)] * 3 for i in range(count)]
    assert [t.data_ptr() for t in tensors] == pointers


def test_lists_of_results() -> None:
    tensors = [torch.full((2,), float(i), device=D) for i in range(30)]
    results = torch._foreach_add(tensors, 1.0)
    assert all(r.device.type == D for r in results)
    assert [r.tolist() for r in results] == [[i + 1.0] * 2 for i in range(30)]
    norms = torch._foreach_norm(tensors)
    assert norms[4].item() == pytest.approx(4 * 2**0.5)


# ---- (b) results over an argument's storage -----------------------------------------------------


def test_in_place_operator_returns_its_argument() -> None:
    x = torch.ones(3, device=D)
    assert x.add_(1) is x
    assert torch.ops.aten.add_.Tensor(x, x) is x
    assert x.tolist() == [4.0] * 3


def replace_storage(x: torch.Tensor) -> None:
    x.set_(torch.full((5,), 9.0))


@pytest.fixture(scope="module")
def library():
    """Operators with CPU kernels of the awkward kinds, served by the boxed kernel on ruda."""
    made = torch.library.Library("ruda_test_rules", "DEF")
    for schema, kernel in {
        "reshaped(Tensor x) -> Tensor": lambda x: x.view(2, 3),
        "itself(Tensor x) -> Tensor": lambda x: x,
        "halves(Tensor x) -> (Tensor, Tensor)": lambda x: (x + 1).split(3),
        "number(Tensor x, Tensor number) -> Tensor": lambda x, number: number,
        "replaced(Tensor(a!) x) -> ()": replace_storage,
        "seeded(Tensor x, *, Generator? generator=None) -> Tensor": lambda x, generator=None: x + 1,
        "where_to(Tensor? x, *, Device? device=None) -> Tensor": lambda x, device=None: torch.ones(
            2, device=device
        ),
    }.items():
        name = made.define(schema)
        made.impl(name, kernel, "CPU")
        ruda_torch._native.testing.serve_boxed(f"ruda_test_rules::{name}", True)
    yield torch.ops.ruda_test_rules
    made._destroy()


def test_result_over_an_arguments_storage_maps_back(library) -> None:
    x = torch.arange(6.0, device=D)
    for result in (library.reshaped(x), library.itself(x)):
        assert result.device.type == D
        assert result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        result.add_(1)
    assert x.tolist() == [2, 3, 4, 5, 6, 7]


def test_results_that_share_a_storage_stay_together(library) -> None:
    first, second = library.halves(torch.zeros(6, device=D))
    assert first.device.type == second.device.type == D
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    second.fill_(5)
    assert first.tolist() == [1, 1, 1] and second.tolist() == [5, 5, 5]


def test_cpu_argument_as_result_is_copied_not_taken(library) -> None:
    number = torch.tensor(3.0)
    result = library.number(torch.ones(2, device=D), number)
    assert result.device.type == D and number.device.type == "cpu"
    result.add_(1)
    assert number.item() == 3.0 and result.item() == 4.0


def test_argument_whose_storage_the_kernel_replaced(library) -> None:
    x = torch.zeros(2, device=D)
    library.replaced(x)
    assert x.device.type == D and x.tolist() == [9.0] * 5
    assert ruda_torch._native.testing.is_pool_memory(x)


def test_generators_never_reach_a_cpu_kernel(library) -> None:
    x = torch.zeros(2, device=D)
    assert library.seeded(x).tolist() == [1, 1]
    with pytest.raises(NotImplementedError, match=r"ruda_test_rules::seeded.*generator"):
        library.seeded(x, generator=torch.Generator("ruda"))


def test_device_argument_is_rewritten_in_any_place(library) -> None:
    result = library.where_to(torch.ones(1, device=D), device="ruda")
    assert result.device == torch.device("ruda:0") and result.tolist() == [1, 1]


def test_views_cannot_be_served(library) -> None:
    made = torch.library.Library("ruda_test_views", "DEF")
    made.define("part(Tensor(a) x) -> Tensor(a)")
    with pytest.raises(RuntimeError, match="returns a view"):
        ruda_torch._native.testing.serve_boxed("ruda_test_views::part", False)
    made._destroy()


def test_same_tensor_as_input_and_output() -> None:
    x = torch.zeros(0, device=D)
    y = torch.ones(4, 6, device=D)
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        torch.cat((x, y), out=x)
    z = torch.ones(5, device=D)
    with pytest.raises(RuntimeError, match="single memory location"):
        z[1:].add_(z[:-1])
    square = torch.eye(3, device=D)
    torch.add(square, square, out=square)
    assert torch.equal(square.cpu(), 2 * torch.eye(3))


# ---- (e) devices --------------------------------------------------------------------------------

ruda, cpu = (lambda: torch.ones(2, 2, device=D)), (lambda: torch.ones(2, 2))
MIXED = {
    "mm": lambda: torch.mm(ruda(), cpu()),
    "mm reversed": lambda: torch.mm(cpu(), ruda()),
    "addmm": lambda: torch.addmm(cpu(), ruda(), ruda()),
    "bmm": lambda: torch.bmm(ruda()[None], cpu()[None]),
    "linear": lambda: torch.nn.functional.linear(ruda(), cpu()),
    "add": lambda: ruda() + cpu(),
    "add_": lambda: ruda().add_(cpu()),
    "cat": lambda: torch.cat([ruda(), cpu()]),
    "stack": lambda: torch.stack([cpu(), ruda()]),
    "where": lambda: torch.where(ruda() > 0, ruda(), cpu()),
    "where condition": lambda: torch.where(cpu() > 0, ruda(), ruda()),
    "index": lambda: ruda()[torch.tensor([0, 1])],
    "index_put values": lambda: ruda().index_put_((torch.tensor([0], device=D),), cpu()[:1]),
    "index_put indices": lambda: ruda().index_put_((torch.tensor([0]),), ruda()[:1]),
    "masked_fill": lambda: ruda().masked_fill(cpu() > 0, 0.0),
    "gather": lambda: ruda().gather(0, torch.zeros(1, 2, dtype=torch.long)),
    "embedding": lambda: torch.nn.functional.embedding(torch.tensor([0]), ruda()),
    "layer_norm": lambda: torch.nn.functional.layer_norm(ruda(), (2,), torch.ones(2)),
    "conv": lambda: torch.nn.functional.conv1d(ruda()[None], cpu()[None]),
    "loss": lambda: torch.nn.functional.cross_entropy(ruda(), torch.tensor([0, 1])),
    "attention": lambda: torch.nn.functional.scaled_dot_product_attention(
        ruda()[None, None], ruda()[None, None], ruda()[None, None], attn_mask=cpu()
    ),
    "foreach": lambda: torch._foreach_add([ruda(), ruda()], [ruda(), cpu()]),
    "out on the CPU": lambda: torch.add(ruda(), ruda(), out=cpu()),
    "multinomial": lambda: torch.multinomial(ruda(), 1, out=torch.empty(0, dtype=torch.long)),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_devices_are_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"[Ee]xpected all tensors to be on the same device"):
        MIXED[name]()


def test_error_names_operator_argument_and_devices() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.mm(torch.ones(2, 2, device=D), torch.ones(2, 2))
    for part in ("aten::mm", "mat2", "cpu", "ruda:0", "[2, 2]"):
        assert part in str(caught.value)


def test_cpu_numbers_stand_beside_tensors() -> None:
    x = torch.ones(2, 2, device=D)
    two = torch.tensor(2.0)
    assert (x + two).tolist() == (two + x).tolist() == [[3, 3], [3, 3]]
    assert torch.where(x > 0, two, x).tolist() == [[2, 2], [2, 2]]
    assert x.clone().masked_fill_(x > 0, two).tolist() == [[2, 2], [2, 2]]
    assert x.clone().index_put_((torch.tensor([0], device=D),), two).tolist() == [[2, 2], [1, 1]]
    # A CPU tensor of one dimension is not a number, and a written one must be of the device.
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.tensor([2.0])
    with pytest.raises(RuntimeError, match="same device"):
        torch.tensor(1.0).add_(torch.tensor(1.0, device=D))
    with pytest.raises(RuntimeError, match="same device"):
        torch.linalg.cross(torch.ones(3, device=D), torch.tensor(1.0))


def test_type_promotion_with_numbers_is_torchs() -> None:
    half = torch.ones(2, dtype=torch.bfloat16, device=D)
    assert (half + 2.5).dtype == torch.bfloat16
    assert (half + torch.tensor(2.5)).dtype == torch.bfloat16
    assert (half + torch.tensor([2.5], device=D)).dtype == torch.float32
    assert (torch.ones(2, dtype=torch.int64, device=D) + 1.5).dtype == torch.float32


def test_foreach_scalars_are_a_cpu_tensor() -> None:
    tensors = [torch.ones(2, device=D) for _ in range(2)]
    torch._foreach_addcmul_(tensors, tensors, tensors, torch.tensor([1.0, 3.0]))
    assert [t.tolist() for t in tensors] == [[2, 2], [4, 4]]


def test_device_arguments_are_rewritten_and_back() -> None:
    indices = torch.tril_indices(3, 3, device=D)
    assert indices.device == torch.device("ruda:0")
    assert torch.equal(indices.cpu(), torch.tril_indices(3, 3))


# ---- errors -------------------------------------------------------------------------------------


def test_exceptions_keep_their_types() -> None:
    x = torch.ones(2, 3, device=D)
    with pytest.raises(IndexError, match="Dimension out of range"):
        x.sum(5)
    with pytest.raises(IndexError, match="index out of range"):
        torch.nn.functional.embedding(torch.tensor([7], device=D), x)
    with pytest.raises(torch.linalg.LinAlgError):
        torch.linalg.cholesky(-torch.eye(2, device=D))
    with pytest.raises(ValueError, match="non-empty list"):
        torch.cat([])
    with pytest.raises(RuntimeError, match="must match the size"):
        x + torch.ones(4, device=D)


def test_a_failed_call_leaves_its_output_alone() -> None:
    out = torch.full((2, 2), 7.0, device=D)
    pointer = out.data_ptr()
    with pytest.raises(RuntimeError):
        torch.add(torch.ones(3, device=D), torch.ones(4, device=D), out=out)
    assert out.tolist() == [[7, 7], [7, 7]] and out.data_ptr() == pointer


def test_unlisted_operator_raises() -> None:
    with pytest.raises(NotImplementedError) as caught:
        torch.ones(2, device=D).to_sparse()
    for part in ("aten::_to_sparse", "host", "float32"):
        assert part in str(caught.value)


def test_unlisted_operator_of_another_library_raises() -> None:
    library = torch.library.Library("ruda_test_boxed", "DEF")
    library.define("mystery(Tensor[] xs) -> Tensor")
    try:
        with pytest.raises(NotImplementedError, match=r"ruda_test_boxed::mystery.*host.*bfloat16"):
            torch.ops.ruda_test_boxed.mystery([torch.ones(2, dtype=torch.bfloat16, device=D)])
    finally:
        library._destroy()


# ---- memory, autocast, autograd -----------------------------------------------------------------


def test_results_live_in_our_pool() -> None:
    x = torch.ones(1 << 16, device=D)
    before = torch.ruda.memory_allocated()
    y = torch.exp(x)
    z = torch.sort(x)
    assert torch.ruda.memory_allocated() - before == y.nbytes + z.values.nbytes + z.indices.nbytes
    del y, z
    assert torch.ruda.memory_allocated() == before


def test_scratch_of_cpu_kernels_is_given_back() -> None:
    x = torch.randn(100, 100, device=D)
    before = torch.ruda.memory_allocated()
    values = torch.linalg.svdvals(x)
    del values
    assert torch.ruda.memory_allocated() == before


def test_cpu_autocast_does_not_reach_inside() -> None:
    x, w = torch.randn(4, 3, device=D), torch.randn(3, 3, device=D, dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.addmm(x.double(), x.double(), w).dtype == torch.float64
        y = torch.nn.functional.conv1d(x[None], torch.ones(2, 4, 1, device=D))
        assert y.dtype == torch.float32


def test_in_place_operators_count_versions_once() -> None:
    x = torch.ones(3, device=D)
    version = x._version
    x.mul_(2)
    assert x._version == version + 1


def test_inference_mode() -> None:
    with torch.inference_mode():
        y = torch.ones(3, device=D) * 2
        y.add_(1)
        assert y.is_inference() and y.tolist() == [3, 3, 3]
    with pytest.raises(RuntimeError, match=r"[Ii]nference tensor"):
        y.add_(1)


def test_second_derivatives() -> None:
    x = torch.tensor([0.3, -0.7], device=D, requires_grad=True)
    for f in (torch.nn.functional.silu, torch.nn.functional.mish, torch.tanh, torch.sigmoid):
        (first,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        twin = x.detach().cpu().double().requires_grad_()
        (expected,) = torch.autograd.grad(f(twin).sum(), twin, create_graph=True)
        (expected,) = torch.autograd.grad(expected.sum(), twin)
        torch.testing.assert_close(second.cpu().double(), expected, rtol=1e-5, atol=1e-6)


def test_lazy_bits_reach_the_cpu_kernel() -> None:
    x = torch.randn(3, 3, dtype=torch.complex64)
    y = x.to(D)
    assert torch.equal((y.conj() @ y.mH).cpu(), x.conj() @ x.mH)
    assert torch.equal(torch.add(y.conj().imag, 1).cpu(), x.conj().imag + 1)
    assert torch.equal(y.clone().conj_physical_().cpu(), x.conj().resolve_conj())


def test_lazy_clones_are_apart() -> None:
    ones = torch.ones(3, 3, device=D)
    for write in (
        lambda t: t.add_(1),
        lambda t: t.copy_(ones),
        lambda t: t.uniform_(1, 2),
        lambda t: torch.mm(ones, ones, out=t),
        lambda t: torch._foreach_add_([t], 1.0),
    ):
        for which in (0, 1):
            pair = [torch.zeros(3, 3, device=D)]
            pair.append(torch._lazy_clone(pair[0]))
            write(pair[which])
            assert not pair[1 - which].any() and pair[which].all()


def test_shapes_of_predicates() -> None:
    for dtype in (torch.float32, torch.complex64):
        x = torch.tensor([[1.0, torch.inf, torch.nan]], device=D).to(dtype)
        for function in (torch.abs, torch.isfinite, torch.isinf, torch.isnan):
            assert function(x).shape == (1, 3)
        assert torch.isfinite(x).tolist() == [[True, False, False]]


def test_library_calls_are_counted() -> None:
    x = torch.ones(3, device=D)
    before = ruda_torch.execution_stats()
    torch.exp(x)
    after = ruda_torch.execution_stats()
    assert after["library_calls"] == before["library_calls"] + 1
