"""Experiments on real engines of vLLM for CPUs, with tiny random models. Each runs in a process of its own."""
