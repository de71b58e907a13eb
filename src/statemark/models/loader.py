"""From a model folder to a running model. Owns the order of checks, the packed type and the fingerprint."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from statemark.errors import CheckpointError, ConfigurationError
from statemark.models.arithmetic import arithmetic_digest
from statemark.models.backend import RuntimeLike, backend_of
from statemark.models.checkpoint import Checkpoint
from statemark.models.config import TextConfig, read_config
from statemark.models.generation import read_generation_defaults
from statemark.models.hub import resolve_model_folder
from statemark.models.quantization import check_quantization
from statemark.models.qwen3_5 import EMBEDDING, HEAD, Builder, Parts, Qwen3_5, Sizes, expected_tensors
from statemark.models.spec import Model, ModelSpec
from statemark.models.stored import STORED, StoredWeights
from statemark.models.weights import CheckpointWeights, Weights

_Stage = Callable[[int, int], None] | None

DTYPES = ("auto", "bfloat16", "float32")

# Part of every fingerprint: raise it when packed weights, states or their arithmetic change meaning.
FORMAT_VERSION = 2


def load_model(
    path_or_id: str | Path,
    *,
    runtime: RuntimeLike,
    dtype: str = "auto",
    quantization: str | None = None,
    max_model_len: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Model:
    """Load a model folder (or hub id). Everything that can be wrong is said before the first weight is packed,
    except what only the weights' values show. `progress` gets (stage, bytes done, bytes in all).

    `quantization`: "int8" or "int4", in place of `dtype`. A folder that `statemark quantize` wrote brings its own.
    """
    check_quantization(quantization, dtype)
    if dtype not in DTYPES:
        raise ConfigurationError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    folder = resolve_model_folder(path_or_id)
    config = read_config(folder)
    length = _max_model_len(config, max_model_len)
    stage = None if progress is None else lambda done, total: progress("weights", done, total)
    if (folder / STORED).is_file():
        loaded = _stored(folder, config, runtime, dtype, quantization, stage)
    else:
        loaded = _packed_now(folder, config, runtime, dtype, quantization, stage)
    config, weights, parts, packed, content, notices = loaded
    sizes = Sizes.of(config)
    spec = ModelSpec(
        architecture=config.architecture,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        max_model_len=length,
        dtype=packed,
        kv_dtype="float32" if packed == "float32" else "bfloat16",
        num_attention_layers=config.num_attention_layers,
        page_elems=config.num_attention_layers * sizes.page_elems,
        num_recurrent_layers=config.num_recurrent_layers,
        slot_floats=config.num_recurrent_layers * sizes.slot_floats,
        weight_bytes=weights.weight_bytes,
        eos_token_ids=config.eos_token_ids or read_generation_defaults(folder).eos_token_ids,
        fingerprint=_fingerprint(config, packed, runtime.isa, content),
        notices=notices,
    )
    return Qwen3_5(config, spec, runtime, parts.layers, parts.embedding, parts.final_norm, parts.head)


class _Loaded(NamedTuple):
    config: TextConfig
    weights: Weights
    parts: Parts
    dtype: str
    content: str
    notices: list[str]


def _packed_now(
    folder: Path, config: TextConfig, runtime: RuntimeLike, dtype: str, quantization: str | None, stage: _Stage
) -> _Loaded:
    """From a checkpoint, packed as it is read."""
    checkpoint = Checkpoint(folder, stage)
    notices = [*config.notices, *checkpoint.notices]
    config = settle_tied(config, checkpoint, notices)
    checkpoint.check(expected_tensors(config))
    packed = quantization or _packed_dtype(dtype, checkpoint, notices)
    backend = backend_of(runtime)
    weights = CheckpointWeights(checkpoint, backend, packed)
    try:
        parts = Builder(config, weights, backend).build()
    except MemoryError:
        need = sum(map(checkpoint.nbytes, checkpoint.names))
        raise CheckpointError(
            f"not enough memory for the weights: {need / 1e9:.1f} GB on disk", hint="use a smaller model or bfloat16"
        ) from None
    checkpoint.check_finite()
    return _Loaded(config, weights, parts, packed, checkpoint.content_digest(), notices)


def _stored(
    folder: Path, config: TextConfig, runtime: RuntimeLike, dtype: str, quantization: str | None, stage: _Stage
) -> _Loaded:
    """From a folder that `statemark quantize` wrote. Its digest is the checkpoint's: equal weights, equal states."""
    backend = backend_of(runtime)
    weights = StoredWeights(folder, backend, stage)
    packed = weights.quantization
    if quantization not in (None, packed):
        raise ConfigurationError(
            f"the weights in {folder} are stored in {packed}, not {quantization}",
            hint=f"leave quantization out, or quantize the original checkpoint to {quantization}",
        )
    check_quantization(packed, dtype)
    if HEAD in weights:
        config = replace(config, tie_word_embeddings=False)
    weights.check(expected_tensors(config))
    return _Loaded(
        config, weights, Builder(config, weights, backend).build(), packed, weights.source, [*config.notices]
    )


def _max_model_len(config: TextConfig, wanted: int | None) -> int:
    if wanted is None:
        return config.max_position_embeddings
    if wanted < 1 or wanted > config.max_position_embeddings:
        raise ConfigurationError(
            f"max_model_len must be between 1 and the model's {config.max_position_embeddings} positions, got {wanted}"
        )
    return wanted


def settle_tied(config: TextConfig, checkpoint: Checkpoint, notices: list[str]) -> TextConfig:
    """What transformers does where the config says tied and the file has its own opinion."""
    if not config.tie_word_embeddings or HEAD not in checkpoint:
        return config
    if EMBEDDING in checkpoint and not checkpoint.same(EMBEDDING, HEAD):
        notices.append("tie_word_embeddings is true, but the stored lm_head differs from the embedding: both are used")
        return replace(config, tie_word_embeddings=False)
    if EMBEDDING in checkpoint:
        checkpoint.forget(HEAD)
    else:
        checkpoint.rename(HEAD, EMBEDDING)
    return config


def _packed_dtype(dtype: str, checkpoint: Checkpoint, notices: list[str]) -> str:
    """`auto` follows the type that holds most bytes."""
    if dtype != "auto":
        return dtype
    by_bytes: Counter[str] = Counter()
    for name in checkpoint.names:
        by_bytes[checkpoint.dtype(name)] += checkpoint.nbytes(name)
    main = by_bytes.most_common(1)[0][0]
    if main == "F16":
        notices.append("float16 weights are rounded to bfloat16 (3 bits less); dtype float32 keeps all bits")
    return "float32" if main == "F32" else "bfloat16"


def _fingerprint(config: TextConfig, dtype: str, isa: str, content: str) -> str:
    """Equal only where equal tokens give equal states: same weights, same dimensions, same arithmetic.

    Names the instruction set because each rounds differently, and the code and the processor because states outlive
    this process on disk. The weights enter by `digest.ContentDigest`, which
    reads every byte but is not cryptographic. The context length, for one, changes no state.
    """
    beside = {"architecture", "notices", "eos_token_ids", "max_position_embeddings"}
    shape = {key: value for key, value in dataclasses.asdict(config).items() if key not in beside}
    facts = {"format": FORMAT_VERSION, "config": shape, "dtype": dtype, "isa": isa, "weights": content}
    facts["arithmetic"] = arithmetic_digest()
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()
