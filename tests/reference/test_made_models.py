"""Folders of make-model load in transformers, tokenizer and template included."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from statemark.models import load_tokenizer
from statemark.models.make_model import make_model
from tests.models.building import Runner, prompt, runtimes
from tests.models.distances import Distance
from tests.reference import hf

pytestmark = pytest.mark.reference


@pytest.mark.parametrize("like", ["qwen3.5-0.8b", "qwen3.5-27b"])
def test_transformers_computes_the_same(tmp_path: Path, like: str) -> None:
    folder = make_model(tmp_path / "m", like=like, scale="tiny").path
    runner = Runner(folder, runtimes()[-1])
    ids = prompt(runner.spec.vocab_size, 65)
    model = hf.load(folder, torch.float32)
    assert Distance.between(hf.logits(model, ids), runner.logits(ids)).is_rounding


def test_tokenizer_and_template(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m", like="qwen3.5-0.8b", scale="tiny").path
    ours, theirs = load_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    for text in ("hello world", " two  spaces\n\tünïcödé 漢字 <|im_end|>x", ""):
        ids = theirs(text)["input_ids"]
        assert ours.encode(text) == ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert theirs.eos_token_id in ours.eos_token_ids
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    plain = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert plain == "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    with_tools = theirs.apply_chat_template(messages, tools=tools, tokenize=False)
    assert with_tools.startswith("<|im_start|>system\nbe brief\n\nTools:\n{")
    assert with_tools.count("be brief") == 1
