"""The prefix cache: pages, marks, the index that finds them, and the byte budget that they share.

Knows token ids, digests, ids of pages and slots, and bytes. Knows neither kernels nor models, so that a simulator can
run it.
"""

from statemark.cache.budget import Budget
from statemark.cache.digest import PAGE_TOKENS, PrefixChain, roll_stamp, stamp_seed
from statemark.cache.explain import Explanation
from statemark.cache.index import Head, Lookup, Mark, PrefixIndex
from statemark.cache.manager import CacheManager, Lease
from statemark.cache.outline import MarkOutline, outline
from statemark.cache.plan import plan_marks
from statemark.cache.stats import CacheStats, Capacity, capacity

__all__ = [
    "PAGE_TOKENS",
    "Budget",
    "CacheManager",
    "CacheStats",
    "Capacity",
    "Explanation",
    "Head",
    "Lease",
    "Lookup",
    "Mark",
    "MarkOutline",
    "PrefixChain",
    "PrefixIndex",
    "capacity",
    "outline",
    "plan_marks",
    "roll_stamp",
    "stamp_seed",
]
