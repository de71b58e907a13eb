"""Text to ids and back, and which of a folder's files decides what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statemark.errors import CheckpointError
from statemark.models import Tokenizer, load_tokenizer, read_generation_defaults
from statemark.models.random_tokenizer import write_tokenizer
from tests.models.building import edit_json


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path, 700)
    return tmp_path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, 700)
    return load_tokenizer(folder)


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_text_survives_the_round_trip(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert all(0 <= i < tokenizer.vocab_size for i in ids)


def test_special_tokens_are_single_ids_and_can_be_skipped(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n")
    assert ids[0] == tokenizer.id("<|im_start|>") == 698
    assert 699 in ids
    assert tokenizer.decode(ids) == "user\nhi\n"
    assert tokenizer.token(699) == "<|im_end|>"
    assert tokenizer.token(100_000) == ""
    assert tokenizer.id("<|nothing|>") is None
    assert tokenizer.vocab_size == 700


def test_end_ids_are_the_union_of_all_files(folder: Path) -> None:
    assert load_tokenizer(folder).eos_token_ids == (697, 699)
    edit_json(folder / "generation_config.json", eos_token_id=[5, 6])
    (folder / "config.json").write_text('{"eos_token_id": 7, "text_config": {"eos_token_id": [8]}}')
    assert load_tokenizer(folder).eos_token_ids == (5, 6, 7, 8, 699)
    (folder / "generation_config.json").unlink()
    (folder / "config.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    assert load_tokenizer(folder).eos_token_ids == ()


def test_special_tokens_as_strings_objects_or_in_their_own_file(folder: Path) -> None:
    assert load_tokenizer(folder).special_tokens == {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    edit_json(folder / "tokenizer_config.json", eos_token={"content": "<|endoftext|>", "lstrip": False}, bos_token=None)
    (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<|im_start|>", "eos_token": "ignored"}))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.special_tokens["eos_token"] == "<|endoftext|>"
    assert tokenizer.special_tokens["bos_token"] == "<|im_start|>"


def test_template_sources(folder: Path) -> None:
    edit_json(folder / "tokenizer_config.json", chat_template="inline")
    assert "im_start" in (load_tokenizer(folder).chat_template or "")
    (folder / "chat_template.jinja").unlink()
    assert load_tokenizer(folder).chat_template == "inline"
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    edit_json(folder / "tokenizer_config.json", chat_template=named)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("c")
    assert load_tokenizer(folder).chat_templates == {"default": "a", "tool_use": "b", "rag": "c"}
    edit_json(folder / "tokenizer_config.json", chat_template=...)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.chat_template is None
    assert tokenizer.chat_templates == {"rag": "c"}


@pytest.mark.parametrize("bad", [3, {"default": "x"}, ["x"], [{"name": "x"}]])
def test_malformed_templates(folder: Path, bad: object) -> None:
    edit_json(folder / "tokenizer_config.json", chat_template=bad)
    with pytest.raises(CheckpointError, match="chat_template must"):
        load_tokenizer(folder)


def test_no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"no tokenizer in .*tokenizer\.json is absent"):
        load_tokenizer(folder)


def test_damaged_files(folder: Path) -> None:
    whole = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=r"tokenizer\.json can't be read"):
        load_tokenizer(folder)
    (folder / "tokenizer.json").write_text(whole)
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json can't be read"):
        load_tokenizer(folder)


def test_generation_defaults(tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    empty = read_generation_defaults(tmp_path)
    assert (empty.sampling, empty.eos_token_ids) == ({}, ())
    path.write_text('{"temperature": 0.6, "top_k": 20, "max_new_tokens": 9, "eos_token_id": 4, "do_sample": true}')
    given_ = read_generation_defaults(tmp_path)
    assert given_.sampling == {"temperature": 0.6, "top_k": 20, "max_tokens": 9}
    assert given_.eos_token_ids == (4,)
    path.write_text('{"temperature": 0.6, "do_sample": false, "top_p": null}')
    assert read_generation_defaults(tmp_path).sampling == {"temperature": 0.0}
    for bad in ('{"top_p": "high"}', '{"top_k": true}', '{"eos_token_id": "x"}', "[]", "{"):
        path.write_text(bad)
        with pytest.raises(CheckpointError):
            read_generation_defaults(tmp_path)
