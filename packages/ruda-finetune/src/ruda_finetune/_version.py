"""The version of ruda-finetune: 0.<ABI>.<patch>."""

__version__ = "0.10.0"
