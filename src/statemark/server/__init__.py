"""The OpenAI-compatible server: HTTP in, engine requests out, streams back. Must not reach below `engine`."""
