"""Which vLLM the cut was made for: fingerprints of the functions that it replaces or relies on.

A version number says little: these are private functions that change without notice. What is compared is their source.
Knows names and digests; nothing of geometry or rules.

    python -m statemark.vllm.versions      fingerprints of the vLLM that is installed
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json

# What the cut replaces, and where cache and hits are decided that it cuts for.
FUNCTIONS = (
    "vllm.v1.core.sched.scheduler:Scheduler._mamba_block_aligned_split",
    "vllm.v1.core.sched.scheduler:Scheduler._reserve_prefill_lookahead",
    "vllm.v1.kv_cache_interface:get_mamba_prefill_checkpoint_position",
    "vllm.v1.kv_cache_interface:is_mamba_prefill_checkpoint_valid",
    "vllm.v1.core.kv_cache_coordinator:replay_boundaries",
    "vllm.v1.core.kv_cache_coordinator:HybridKVCacheCoordinator.find_longest_cache_hit",
    "vllm.v1.core.kv_cache_utils:resolve_kv_cache_block_sizes",
    "vllm.v1.core.single_type_kv_cache_manager:MambaManager.allocate_new_blocks",
    "vllm.v1.core.single_type_kv_cache_manager:MambaManager.cache_blocks",
    "vllm.v1.core.single_type_kv_cache_manager:MambaManager._cache_partial_tail_block",
    "vllm.v1.core.single_type_kv_cache_manager:MambaManager._needs_internal_checkpoint",
    "vllm.v1.core.single_type_kv_cache_manager:MambaManager.find_longest_cache_hit",
    "vllm.v1.core.single_type_kv_cache_manager:MambaManager.reachable_block_mask",
    "vllm.v1.core.single_type_kv_cache_manager:MambaManager.remove_skipped_blocks",
)

# name of the version -> fingerprint of each function above, in order
KNOWN: dict[str, tuple[str, ...]] = {
    "0.32.0": (
        "21aadb4fc430",
        "7e04837c7860",
        "b6e0934cd3f5",
        "5bd21f5581b6",
        "347c7438b329",
        "08560af857a8",
        "0c472659baa0",
        "afed2c8e0f96",
        "6a77d18e9031",
        "31582e27beda",
        "b81324bf0e35",
        "b530a7c468c2",
        "4f655fb4b7c8",
        "1e55a51ad17f",
    ),
    # Hashes may look ahead of their block instead of EAGLE's drop: such a layout is refused.
    "0.33.0": (
        "84fed5ada7ea",
        "7e04837c7860",
        "4a0fecd4c566",
        "5bd21f5581b6",
        "347c7438b329",
        "08560af857a8",
        "0c472659baa0",
        "afed2c8e0f96",
        "6a77d18e9031",
        "f1b5ad80f816",
        "b81324bf0e35",
        "b530a7c468c2",
        "4f655fb4b7c8",
        "1e55a51ad17f",
    ),
}


def fingerprint(path: str) -> str:
    """A short digest of a function's source, or what is wrong with it."""
    module_name, _, names = path.partition(":")
    try:
        found: object = importlib.import_module(module_name)
        for name in names.split("."):
            found = getattr(found, name)
        source = inspect.getsource(found)  # type: ignore[arg-type]
    except (ImportError, AttributeError):
        return "missing"
    except (OSError, TypeError):
        return "no source"
    return hashlib.blake2b("\n".join(line.rstrip() for line in source.splitlines()).encode(), digest_size=6).hexdigest()


def installed() -> tuple[str, ...]:
    """Fingerprints of the vLLM that is installed."""
    return tuple(fingerprint(path) for path in FUNCTIONS)


def changed(found: tuple[str, ...]) -> tuple[str, ...]:
    """The functions that are those of no known version; of the closest version, where several are known."""
    return min((_differences(found, known) for known in KNOWN.values()), key=len)


def _differences(found: tuple[str, ...], known: tuple[str, ...]) -> tuple[str, ...]:
    pairs = zip(FUNCTIONS, found, known, strict=True)
    return tuple(path.partition(":")[2] for path, theirs, ours in pairs if theirs != ours)


if __name__ == "__main__":
    print(json.dumps(dict(zip(FUNCTIONS, installed(), strict=True)), indent=1))
