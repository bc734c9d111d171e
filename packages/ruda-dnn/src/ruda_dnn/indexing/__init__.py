"""Device kernels of ATen's indexing operators; ruda-torch launches them. No Python functions."""
