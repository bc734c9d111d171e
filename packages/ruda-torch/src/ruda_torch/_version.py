"""The version of ruda-torch: 0.<ABI>.<patch>."""

__version__ = "0.10.0"
