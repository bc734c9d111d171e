"""Tensors: layout, views, NumPy."""

from __future__ import annotations

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ruda_runtime as rr

Tensor = rr.Tensor
DTYPES = {
    "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
    "float64": np.float64, "int8": np.int8, "int16": np.int16, "int32": np.int32,
    "int64": np.int64, "uint8": np.uint8, "uint32": np.uint32, "bool": np.bool_,
}  # fmt: skip


def example(name: str, shape: tuple[int, ...] = (2, 3)) -> np.ndarray:
    count = int(np.prod(shape))
    values = np.arange(count) % 2 if name == "bool" else np.arange(count) - (name[0] != "u") * 3
    return values.reshape(shape).astype(DTYPES[name])


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_shares_memory_with_numpy(name: str) -> None:
    array = example(name)
    tensor = Tensor.from_numpy(array)
    assert tensor.dtype == array.dtype and tensor.dtype_name == name
    assert tensor.itemsize == array.itemsize and tensor.nbytes == array.nbytes
    assert (tensor.shape, tensor.strides, tensor.ndim, tensor.size) == ((2, 3), (3, 1), 2, 6)
    assert tensor.data_ptr == array.ctypes.data and tensor.is_contiguous()
    back = tensor.numpy()
    assert back.dtype == array.dtype and np.array_equal(back, array)
    back[1, 2] = 1
    assert array[1, 2] == 1
    made = rr.empty((2, 3), name)
    assert made.dtype == array.dtype and rr.empty(2, DTYPES[name]).dtype_name == name
    assert rr.empty(2, array.dtype).shape == (2,)


@pytest.mark.parametrize("wrong", ["complex64", "float8", np.complex128, object, "U3", 7])
def test_other_dtypes_are_refused(wrong: object) -> None:
    with pytest.raises(rr.RudaTypeError, match=r"\[empty\] dtype: got .*, wanted float32, float16"):
        rr.empty(3, wrong)
    with pytest.raises(rr.RudaTypeError, match=r"\[from_numpy\] dtype: got complex64"):
        Tensor.from_numpy(np.zeros(3, np.complex64))
    with pytest.raises(rr.RudaTypeError, match=r"array: got list, wanted a numpy.ndarray"):
        Tensor.from_numpy([1.0])  # type: ignore[arg-type]


def strided_arrays() -> dict[str, np.ndarray]:
    base = np.arange(120, dtype=np.float32).reshape(4, 5, 6)
    return {
        "contiguous": base, "transposed": base.T, "sliced": base[1:, ::2, 1:5],
        "one column": base[:, :, 3:4], "rank 0": np.array(2.5, np.float32),
        "one row of one": base[2:3, 0:1, 0:1], "fortran": np.asfortranarray(base),
        "empty": base[:0], "empty inside": base[:, 2:2, ::3],
    }  # fmt: skip


@pytest.mark.parametrize("name", strided_arrays())
def test_strided_arrays_are_shared(name: str) -> None:
    array = strided_arrays()[name]
    tensor = Tensor.from_numpy(array, copy=False)
    assert tensor.shape == array.shape and np.array_equal(tensor.numpy(), array)
    if array.size:
        assert tensor.data_ptr == array.ctypes.data
    copied = tensor.contiguous()
    assert copied.is_contiguous() and np.array_equal(copied.numpy(), array)
    assert (copied is tensor) == tensor.is_contiguous()
    fresh = tensor.copy()
    assert np.array_equal(fresh.numpy(), array) and fresh.is_contiguous()
    assert array.size == 0 or fresh.data_ptr != tensor.data_ptr


def test_broadcast_views_have_stride_0() -> None:
    base = np.arange(3, dtype=np.float32)
    array = np.broadcast_to(base, (4, 3))
    array.flags.writeable = True
    tensor = Tensor.from_numpy(array, copy=False)
    assert tensor.strides == (0, 1) and tensor.data_ptr == base.ctypes.data
    assert np.array_equal(tensor.contiguous().numpy(), array)


def unshareable() -> dict[str, np.ndarray]:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    raw = np.zeros(values.nbytes + 1, np.uint8)
    misaligned = raw[1:].view(np.float32).reshape(2, 3)
    misaligned[:] = values
    record = np.zeros((2, 3), np.dtype([("a", np.float32), ("b", np.uint8)]))["a"]
    record[:] = values
    read_only = values.copy()
    read_only.flags.writeable = False
    return {
        "not aligned": misaligned, "not multiples": record, "read-only": read_only,
        "negative": values[::-1], "byte order": values.astype(">f4"),
    }  # fmt: skip


@pytest.mark.parametrize("reason", unshareable())
def test_what_cannot_be_shared_is_copied_or_refused(reason: str) -> None:
    array = unshareable()[reason]
    tensor = Tensor.from_numpy(array)
    assert np.array_equal(tensor.numpy(), array) and tensor.data_ptr % 64 == 0
    assert tensor.data_ptr != array.ctypes.data
    with pytest.raises(rr.RudaValueError, match=rf"cannot be shared without a copy, .*{reason}"):
        Tensor.from_numpy(array, copy=False)


def test_copy_true_always_copies() -> None:
    array = np.ones(3, np.float32)
    tensor = Tensor.from_numpy(array, copy=True)
    array[:] = 5
    assert tensor.numpy().tolist() == [1, 1, 1]


def test_memory_lives_as_long_as_anyone_looks_at_it() -> None:
    class Array(np.ndarray):
        pass

    array = np.arange(1000, dtype=np.float32).view(Array)
    alive = weakref.ref(array)
    tensor = Tensor.from_numpy(array)
    view = tensor.slice(0, 10, 20)
    del array, tensor
    gc.collect()
    assert alive() is not None and view.numpy()[0] == 10
    back = view.numpy()
    del view
    gc.collect()
    assert alive() is not None and back[9] == 19
    del back
    gc.collect()
    assert alive() is None

    before = rr.memory_stats()["count"]
    shown = rr.empty((3, 3)).permute(1, 0).numpy()
    assert rr.memory_stats()["count"] == before + 1
    del shown
    assert rr.memory_stats()["count"] == before


def test_views_share_and_keep_the_offset() -> None:
    tensor = Tensor.from_numpy(np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    part = tensor.slice(1, 1).slice(-1, 0, None, 2)
    assert (part.shape, part.strides, part.offset) == ((2, 2, 2), (12, 4, 2), 4)
    assert part.numpy().tolist() == [[[4, 6], [8, 10]], [[16, 18], [20, 22]]]
    part.numpy()[0, 0, 0] = -1
    assert tensor.numpy()[0, 1, 0] == -1
    assert tensor.view(4, 6).shape == tensor.view((4, 6)).shape == tensor.reshape([4, -1]).shape
    assert tensor.view(-1).strides == (1,)
    assert tensor.permute(2, 0, 1).shape == (4, 2, 3)
    assert tensor.permute(-1, -3, -2).strides == (1, 12, 4)
    assert len(tensor) == 2


@pytest.mark.parametrize(
    ("start", "stop", "step"),
    [(None, None, 1), (2, 7, 1), (-3, None, 1), (None, -2, 3), (5, 2, 1), (0, 99, 4), (-99, 3, 2),
     (10, 12, 1), (9, 10, 5)],
)  # fmt: skip
def test_slices_follow_python(start: int | None, stop: int | None, step: int) -> None:
    values = np.arange(10, dtype=np.int32)
    got = Tensor.from_numpy(values).slice(0, start, stop, step)
    assert got.numpy().tolist() == values[start:stop:step].tolist()


@st.composite
def arrays_and_shapes(draw: st.DrawFn) -> tuple[np.ndarray, tuple[int, ...]]:
    """A strided view of a random array, and another shape with the same number of elements."""
    sizes = draw(st.lists(st.sampled_from([1, 1, 2, 3, 4, 6]), min_size=0, max_size=4))
    array = np.arange(int(np.prod(sizes)), dtype=np.int32).reshape(sizes)
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    for axis in range(array.ndim):
        step = draw(st.sampled_from([1, 1, 2]))
        array = array[(slice(None),) * axis + (slice(None, None, step),)]
    rest, shape = array.size, []
    while rest > 1:
        factor = draw(st.sampled_from([f for f in range(2, rest + 1) if rest % f == 0]))
        shape.append(factor)
        rest //= factor
    for _ in range(draw(st.integers(0, 2))):
        shape.insert(draw(st.integers(0, len(shape))), 1)
    return array, tuple(shape)


@settings(max_examples=300, deadline=None)
@given(arrays_and_shapes())
def test_reshape_agrees_with_numpy(case: tuple[np.ndarray, tuple[int, ...]]) -> None:
    """Shown without a copy exactly where NumPy can, with the same elements."""
    array, shape = case
    tensor = Tensor.from_numpy(array, copy=False)
    want = array.reshape(shape)
    shares = np.shares_memory(want, array)
    try:
        got = tensor.reshape(shape)
    except rr.RudaValueError as error:
        assert "cannot show without a copy; call contiguous() first" in str(error)
        assert not shares
        got = tensor.contiguous().reshape(shape)
    else:
        assert shares and got.data_ptr == tensor.data_ptr
    assert got.shape == shape and np.array_equal(got.numpy(), want)


def test_wrong_views_say_what_is_wrong() -> None:
    tensor = rr.empty((2, 3))
    cases = [
        (lambda: tensor.view(4), r"\[view\] shape: got \[4\] for 6 elements of shape \[2, 3\]"),
        (lambda: tensor.reshape(-1, 4), r"\[reshape\] shape: got \[-1, 4\] for 6 elements"),
        (lambda: tensor.view(-1, -1), r"\[view\] shape: got \[-1, -1\]"),
        (lambda: tensor.view(-2, -3), r"\[view\] shape: got \[-2, -3\]"),
        (lambda: tensor.permute(0), r"\[permute\] dims: got \[0\], wanted each dimension of"),
        (lambda: tensor.permute(0, 0), r"\[permute\] dims: got \[0, 0\]"),
        (lambda: tensor.permute(0, 2), r"\[permute\] dims: got \[0, 2\]"),
        (lambda: tensor.permute(), r"\[permute\] dims: got \[\]"),
        (lambda: tensor.slice(2), r"\[slice\] dim: got 2, wanted a dimension of \[2, 3\]"),
        (lambda: tensor.slice(0, 0, 1, 0), r"\[slice\] step: got 0, wanted at least 1"),
        (lambda: rr.empty((2, -1)), r"\[empty\] shape: got \[2, -1\], wanted sizes of at least 0"),
        (lambda: rr.empty((1,) * 17), r"\[empty\] shape: got rank 17, wanted at most 16"),
        (lambda: rr.empty((2**40, 2**40)), r"\[empty\] shape: .* do not fit 63 bits"),
        (lambda: rr.empty((2**62,), "float32"), r"\[empty\] shape: .* do not fit 63 bits"),
    ]
    for use, text in cases:
        with pytest.raises(rr.RudaValueError, match=text):
            use()
    assert rr.empty((2**40, 0, 2**40)).size == 0


def test_empty_tensors() -> None:
    for shape in ((0,), (3, 0), (0, 4, 5)):
        tensor = rr.empty(shape, "bfloat16")
        assert tensor.shape == shape and tensor.size == 0 and tensor.is_contiguous()
        assert tensor.numpy().shape == shape and tensor.contiguous() is tensor
        assert tensor.view(-1 if shape == (0,) else 0).shape == (0,)
        assert tensor.copy().shape == shape
        assert "shape=" in repr(tensor)


def test_array_protocol() -> None:
    tensor = Tensor.from_numpy(np.arange(3, dtype=np.float32))
    assert np.shares_memory(np.asarray(tensor), tensor.numpy())
    assert np.asarray(tensor, dtype=np.float64).dtype == np.float64
    assert not np.shares_memory(tensor.__array__(copy=True), tensor.numpy())
    with pytest.raises(ValueError, match="copy is needed"):
        tensor.__array__(np.float64, copy=False)
    assert float(np.sum(np.asarray(tensor))) == 3


def test_repr_shows_values_and_layout() -> None:
    tensor = Tensor.from_numpy(np.array([[1.5, 2.0]], np.float32).astype(ml_dtypes.bfloat16))
    assert repr(tensor) == "Tensor([[1.5, 2]], shape=[1, 2], dtype=bfloat16, device='host:0')"


def test_the_view_struct_for_native_modules() -> None:
    import ctypes

    class View(ctypes.Structure):
        _fields_ = (
            ("data", ctypes.c_void_p), ("sizes", ctypes.POINTER(ctypes.c_int64)),
            ("strides", ctypes.POINTER(ctypes.c_int64)), ("ndim", ctypes.c_int32),
            ("dtype", ctypes.c_int32), ("target", ctypes.c_int32), ("device", ctypes.c_int32),
        )  # fmt: skip

    tensor = rr.empty((4, 6), "bfloat16").permute(1, 0).slice(0, 2)
    view = View.from_address(tensor._view_address())
    assert view.data == tensor.data_ptr and (view.ndim, view.dtype) == (2, 2)
    assert (view.target, view.device) == (0, 0)
    assert (view.sizes[0], view.sizes[1]) == tensor.shape == (4, 4)
    assert (view.strides[0], view.strides[1]) == tensor.strides == (1, 6)
