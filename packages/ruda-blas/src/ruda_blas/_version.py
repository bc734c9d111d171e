"""The version of ruda-blas: 0.<ABI>.<patch>."""

__version__ = "0.10.0"
