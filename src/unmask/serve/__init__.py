"""The HTTP server for OpenAI's clients (extra: serve). The engine decodes; this package translates and answers."""
