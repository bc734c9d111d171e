"""The parts of tools/gpu_validation.py."""
