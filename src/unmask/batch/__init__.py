"""Files of requests in OpenAI's batch form, answered as the server would answer them (extra: serve)."""
