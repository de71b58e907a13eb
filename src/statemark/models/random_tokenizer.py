"""A byte-level BPE tokenizer of any size for random-weight models: valid, reversible, speaking in syllables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

from statemark.errors import ConfigurationError

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
BYTES = 256

CHAT_TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system\\n' }}
    {%- if messages and messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}
    {{- 'Tools:' }}
    {%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}{{ '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if not (tools and loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if message.content is string %}{{ message.content }}
        {%- else %}{% for part in message.content or [] %}{{ part.text }}{% endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """tokenizer.json, tokenizer_config.json, chat_template.jinja and generation_config.json for `vocab_size` ids."""
    smallest = BYTES + len(SPECIAL_TOKENS)
    if vocab_size < smallest:
        raise ConfigurationError(f"a vocabulary of {vocab_size} is too small", hint=f"at least {smallest} are needed")
    specials = {name: vocab_size - len(SPECIAL_TOKENS) + i for i, name in enumerate(SPECIAL_TOKENS)}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 262144,
    }
    generation = {"do_sample": True, "eos_token_id": [specials[TURN_END], specials[END_OF_TEXT]]}
    _write_json(folder / "tokenizer.json", _tokenizer(vocab_size, specials))
    _write_json(folder / "tokenizer_config.json", settings, indent=2)
    _write_json(folder / "generation_config.json", generation, indent=2)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def _tokenizer(vocab_size: int, specials: dict[str, int]) -> dict[str, Any]:
    alphabet = sorted(ByteLevel.alphabet())
    vocab = {symbol: i for i, symbol in enumerate(alphabet)}
    merges: list[list[str]] = []
    for left, right in _merges():
        if len(vocab) == vocab_size - len(specials):
            break
        if left + right not in vocab:
            vocab[left + right] = len(vocab)
            merges.append([left, right])
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": True}
            for name, i in specials.items()
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": vocab, "merges": merges,
        },
    }  # fmt: skip


def _merges() -> Iterator[tuple[str, str]]:
    """Endless supply: consonant + vowel, the same after a space, then ever longer words of these syllables."""
    syllables = [c + v for c, v in product("tnshrdlmckwgpfbvyjzqx", "aeiou")]
    yield from ((s[0], s[1]) for s in syllables)
    yield from (("Ġ", s) for s in syllables)
    words = ["Ġ" + s for s in syllables]
    while True:
        yield from product(words, syllables)
        words = [w + s for w, s in product(words, syllables)]


def _write_json(path: Path, value: dict[str, Any], indent: int | None = None) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=indent) + "\n", encoding="utf-8")
