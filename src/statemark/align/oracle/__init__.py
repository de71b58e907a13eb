"""An event-level model of align mode: state slots, the position that each really holds, publication and lookup.

It follows vLLM 0.32's manager, coordinator and worker step by step, and compares what the cache claims with what the
slots hold. It finds wrong entries whatever rule cuts the chunks, because no rule is consulted about them.
"""

from statemark.align.oracle.cache import Cache, CacheGroup, Lookup, groups_of
from statemark.align.oracle.prompt import Prompt
from statemark.align.oracle.table import Content, StateTable
from statemark.align.oracle.world import Chunk, Job, Limits, StaleEntry, Step, World

__all__ = [
    "Cache",
    "CacheGroup",
    "Chunk",
    "Content",
    "Job",
    "Limits",
    "Lookup",
    "Prompt",
    "StaleEntry",
    "StateTable",
    "Step",
    "World",
    "groups_of",
]
