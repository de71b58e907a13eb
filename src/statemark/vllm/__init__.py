"""The vLLM plugin: the right chunk cut, and a check of the prefix cache at start, without a patched vLLM.

    vllm serve MODEL --scheduler-cls statemark.vllm.Scheduler
    LLM(model, scheduler_cls="statemark.vllm.Scheduler")

A thin adapter: what is cut, tested and reported comes from `statemark.align`. vLLM is imported when it
calls, not before.
docs/vllm-plugin.md says what it does, for which versions, and how to tell.
"""

from statemark.vllm.scheduler import Scheduler

__all__ = ["Scheduler"]
