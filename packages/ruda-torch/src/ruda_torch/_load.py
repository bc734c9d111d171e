"""Finding, checking and opening the native module, and registering the device: in that order.

Every check comes before the step it protects: the native module is opened only in a process whose
torch has the minor version it was compiled against, and registers the device only when no other
PrivateUse1 backend is there.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import torch

import ruda_runtime

from . import _abi, _settings
from ._version import __version__


def _check_torch() -> None:
    try:
        from ._built_for import TORCH_MINOR
    except ModuleNotFoundError as error:
        raise ImportError(
            "ruda_torch has no native module: it was not built. From a source checkout run "
            "`python tools/develop.py`, otherwise `python -m pip install --force-reinstall "
            "ruda-torch`"
        ) from error
    running = ".".join(torch.__version__.split("+")[0].split(".")[:2])
    if running != TORCH_MINOR:
        raise ImportError(
            f"ruda-torch {__version__} was built for torch {TORCH_MINOR}, got torch "
            f"{torch.__version__}; install the pair that fits: "
            f"python -m pip install 'torch=={TORCH_MINOR}.*' ruda-torch"
        )


def _check_other_backends() -> None:
    name = torch._C._get_privateuse1_backend_name()
    if name not in ("privateuseone", "ruda"):
        raise ImportError(
            f"the device backend {name!r} is registered in this process and PyTorch has room for "
            "one (PrivateUse1): got a second one, 'ruda'. Uninstall one of the two, or set "
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0 and import only the one you want"
        )


def _open() -> ModuleType:
    path = _settings.library_path()
    if path is None:
        from . import _native as native

        return native
    name = f"{__package__}._native"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"[RUDA_TORCH_LIBRARY] {path} is not a native module of ruda_torch")
    native = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(native)
    sys.modules[name] = native
    setattr(sys.modules[__package__], "_native", native)  # noqa: B010
    return native


def _check_native(native: ModuleType) -> None:
    # Imports the packages below as well, whose native modules register the kernels.
    ruda_runtime.check_abi(
        "ruda-torch", __version__, _abi.PROVIDES, _abi.REQUIRES, native.abi_version
    )


def _memory_info() -> tuple[int, int]:
    device = ruda_runtime.devices()[0]
    return device.memory_free, device.memory_total


asynchronous = _settings.asynchronous()
_settings.check_target()
_check_torch()
_check_other_backends()
native = _open()
_check_native(native)
native.attach(
    ruda_runtime._native.api,
    _settings.settle_target,
    _memory_info,
    *([True] if asynchronous else []),
)

from . import _registration  # noqa: E402

_registration.register()
