"""One fused primitive a file: the formula, then its bodies (reference, cpu, cuda); an `Op` picks one by the array.

Import an op from its file: `from gpulayers.ops.layernorm import layernorm, layernorm_backward`.
"""
