"""The only decoding loop, and the text interface around it."""
