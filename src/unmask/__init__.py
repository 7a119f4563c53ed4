"""Decoding for masked diffusion language models: commit many tokens per forward pass, safely."""
