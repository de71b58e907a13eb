"""Checkpoints, architectures and tokenizers. Knows kernels; knows no scheduling, no cache, no requests."""

from statemark.models.generation import GenerationDefaults, read_generation_defaults
from statemark.models.hub import resolve_model_folder
from statemark.models.loader import DTYPES, load_model
from statemark.models.spec import Model, ModelSpec
from statemark.models.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "DTYPES",
    "GenerationDefaults",
    "Model",
    "ModelSpec",
    "Tokenizer",
    "load_model",
    "load_tokenizer",
    "read_generation_defaults",
    "resolve_model_folder",
]
