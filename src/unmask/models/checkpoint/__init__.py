"""From files to a model: folder or hub, config, weights, tokenizer, template, memory. Runs no code of a checkpoint."""
