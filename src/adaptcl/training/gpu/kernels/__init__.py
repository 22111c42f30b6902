"""Kernels for the GPU, in Triton: one file for each operation that uses them."""
