"""OpenAI's Responses API, without a store: every request carries its whole conversation. Knows no other API."""
