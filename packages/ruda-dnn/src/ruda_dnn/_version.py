"""The version of ruda-dnn: 0.<ABI>.<patch>."""

__version__ = "0.10.0"
