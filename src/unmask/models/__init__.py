"""Foreign checkpoints behind one contract: `base.MaskedLM`.

Into a model: `loading` finds its `family` (`llada`, `dream`, plug-ins; `foreign` refuses others), reads `config`,
`tokenizer`, `chat_template` and `weights`, asks `memory`, and fills the layers, `quantized` if asked for.
`random_weights`, `toy` and `tiny/` need no checkpoint.

A forward pass: `transformer` says which positions are computed and what they attend to (`packing`, `visibility`),
`stack` goes through the `layers`, `steps` does one of them. Its operations are those of `plain`; on CUDA devices those
of `fused` and `wide`, which launch the kernels in `triton_layers`, `triton_products` and `wide_products`
(`triton_linear` is for 8-bit weights), and `graphed` keeps whole passes as `graphs`.
"""
