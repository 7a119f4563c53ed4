"""Models behind one contract: `base.MaskedLM`.

`families/` says what is particular about each family, `checkpoint/` reads files. `transformer` is the model behind all
of them, made of `layers` and an `attention` pattern. `kernels/` runs the same passes faster on CUDA devices.
`quantized`, `random_weights`, `toy` and `tiny/` do what their names say.
"""
