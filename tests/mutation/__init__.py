"""Faults planted in the CUDA kernels, to see whether their tests notice them; `python -m tests.mutate` runs it."""
