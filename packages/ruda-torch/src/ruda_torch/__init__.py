"""The PyTorch device `ruda:0`: its tensors, operators and training functions.

Importing this package registers the device: `torch.ones(3, device="ruda")` works afterwards, and
`torch.ruda` is its module, as `torch.cuda` is for CUDA. With the package installed, `import torch`
imports it by itself (PyTorch's backend autoload; TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns that off).
"""

from __future__ import annotations

import sys as _sys
import warnings as _warnings

from ._version import __version__

_load_error: BaseException | None = None


def _autoload() -> None:
    """Entry point that `import torch` calls (group `torch.backends`).

    Importing this package is all there is to do, so that a second call, or one from inside a half
    done `import ruda_torch`, does nothing. When the device could not be loaded, torch stays usable:
    a warning says why, and the next `import ruda_torch` raises the cause.
    """
    global _load_error
    if _load_error is None:
        return
    # Before the warning, which may be an error: the next import must raise the cause all the same.
    error, _load_error = _load_error, None
    _sys.modules.pop(__name__, None)
    _warnings.warn(
        f"the ruda device is not available, torch works without it: {error}",
        RuntimeWarning,
        stacklevel=2,
    )


def _inside_import_torch() -> bool:
    spec = getattr(_sys.modules.get("torch"), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


_autoloading = _inside_import_torch()
try:
    from . import _load as _load
    from ._public import *  # noqa: F403
    from ._public import __all__ as _public_names
except Exception as _error:
    if not _autoloading:
        raise
    _load_error = _error
    _public_names = []

__all__ = ["__version__", *_public_names]
