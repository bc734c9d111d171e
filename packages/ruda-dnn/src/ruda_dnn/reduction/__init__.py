"""Device kernels of ATen's reductions; ruda-torch launches them. No Python functions."""
