"""The PyTorch device `ruda:0`: its tensors, operators and training functions.

Importing this package registers the device: `torch.ones(3, device="ruda")` works afterwards, and
`torch.ruda` is its module, as `torch.cuda` is for CUDA.
"""

from __future__ import annotations


def _autoload() -> None:
    """Entry point of `import torch` (group `torch.backends`); importing the package did the work."""


from ._version import __version__
from ._load import native as _native
from ._register import register as _register

_register()
