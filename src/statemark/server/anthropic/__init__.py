"""Anthropic's Messages API over the same engine. Knows no other API."""
