"""Copies of strided views on a GPU, by a kernel instead of one driver copy for each plane."""
