"""Requests to tokens: scheduling, steps, sampling, text, and the offline API. Knows nothing of HTTP."""
