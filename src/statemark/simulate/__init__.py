"""The cache without a model: real traces replayed on it, and an executor that computes nothing, for long soaks."""
