"""The version of ruda-runtime: 0.<ABI>.<patch>."""

__version__ = "0.10.0"
