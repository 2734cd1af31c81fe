"""The emulated device: CUDA kernels compiled by NVRTC and run from their PTX on the CPU, with every access checked.

>>> from gpulayers.emulator import cupy as cp
>>> kernel = cp.RawKernel(source, "saxpy")
>>> kernel((grid,), (block,), (x, y, numpy.float32(2), numpy.int64(n)))

docs/emulator.md says what it sees and what it cannot see.
"""
