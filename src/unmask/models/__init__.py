"""Foreign checkpoints behind one contract: `base.MaskedLM`."""
