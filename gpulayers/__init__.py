"""Deep learning by hand: every layer, loss and optimizer written out, forward and backward, on NumPy or CuPy.

>>> import gpulayers as gl
>>> model = gl.models.GPT(gl.models.GPTConfig(vocab=256), seed=0)
"""

__version__ = "0.1.0"
