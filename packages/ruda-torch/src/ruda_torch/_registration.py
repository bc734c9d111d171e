"""Registration of the device with PyTorch's Python side."""

from __future__ import annotations

import torch

from . import _dlpack, _multiprocessing, device_module


def register() -> None:
    """Give the device its name, its module and its tensor methods."""
    # Once in a process: PyTorch wraps enums and adds methods here and refuses a second time.
    torch.utils.rename_privateuse1_backend("ruda")
    torch._register_device_module("ruda", device_module)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    _register_fake_shallow_copy()
    _dlpack.patch()
    _multiprocessing.register()
    # A backward thread of the device would have an OpenMP team of its own, which makes small
    # operators many times slower; the host target has nothing to overlap with it.
    torch.autograd.set_multithreading_enabled(False)
    # PyTorch's default for devices of other makers is float16, whose gradients need a loss scale.
    # The setting belongs to the thread, like every autocast setting.
    torch.set_autocast_dtype("ruda", torch.bfloat16)


def _register_fake_shallow_copy() -> None:
    """Allow `fake.data = fake_on_ruda`, as the kernel of the device does for real tensors.

    Fake tensors do not reach the device's kernel: they run this operator's composite form, which
    asks PyTorch's own list of dense backends.
    """
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    operator = torch.ops.aten._has_compatible_shallow_copy_type.default
    if composite in operator.py_kernels:
        return

    def compatible(target: torch.Tensor, source: torch.Tensor) -> bool:
        pair = (target, source)
        if not any(tensor.device.type == "ruda" for tensor in pair):
            return operator._op_dk(composite, target, source)
        return all(
            tensor.layout == torch.strided and tensor.device.type != "meta" for tensor in pair
        )

    operator.py_impl(composite)(compatible)
