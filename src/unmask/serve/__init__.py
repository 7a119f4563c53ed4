"""The HTTP edge, as OpenAI's clients expect it (extra: serve). Decoding is the engine's; here are words and doors."""
