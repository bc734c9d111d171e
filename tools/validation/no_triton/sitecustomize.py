"""First on PYTHONPATH: the interpreter finds no Triton, as on a machine that has only a bundle.

The driver double's server interprets kernels, so it alone still finds it.
"""

import sys

if "ruda_runtime.testing.server" not in sys.orig_argv:
    sys.modules["triton"] = None  # type: ignore[assignment]  # import and find_spec find nothing
