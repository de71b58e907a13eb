"""Small tokenizers for tests, of the two kinds that checkpoints have: byte-level BPE, and words with byte fallback."""

from __future__ import annotations

import functools
from collections.abc import Callable

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from statemark.models import Tokenizer

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEXT = """The quick brown fox. Die Füße des Bären: größer! 中文测试文本,中文 日本語テキスト 한국어
🎉🎊👩‍👩‍👧‍👦 🇩🇪 e\u0301\n
def f(x):\n    return x + 1\n\n\nuser assistant system tool <think>\n\n</think>\n\n"""


def wrap(inner: tokenizers.Tokenizer) -> Tokenizer:
    inner.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIALS])
    inner.add_tokens([AddedToken(name, normalized=False) for name in ("<think>", "</think>")])
    end = inner.token_to_id("<|im_end|>")
    return Tokenizer(inner, special_tokens={"eos_token": "<|im_end|>"}, eos_token_ids=(end,), chat_templates={})


@functools.cache
def byte_level(merges: int = 120) -> Tokenizer:
    """Like Qwen's: some multi-byte characters are one token, some are two or four."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + merges, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    inner.train_from_iterator([TEXT] * 4, trainer)
    return wrap(inner)


@functools.cache
def byte_fallback() -> Tokenizer:
    """Like Llama 2's: a mark for the space before a word, dropped at the start; rare characters in bytes."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["▁", "a", "b", "c", "▁a", "▁b", "ab", "▁ab", "é", "中"]
    vocab = {word: i for i, word in enumerate(words)}
    merges = [("▁", "a"), ("▁", "b"), ("a", "b"), ("▁", "ab")]
    inner = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return wrap(inner)


def with_spans(tokenizer: Tokenizer) -> Callable[[str], tuple[list[int], list[tuple[int, int]]]]:
    def encode(text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoding = tokenizer._inner.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    return encode
