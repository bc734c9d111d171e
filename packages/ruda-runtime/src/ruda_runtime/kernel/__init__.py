"""Device kernels: definition, compilation, caches, launch plans and bundles.

Importing this package imports no compiler.
"""

from __future__ import annotations
