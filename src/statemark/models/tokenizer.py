"""A model folder's tokenizer: text to ids and back, special tokens, end ids, chat template source.

Owns which files say what. Renders no template and knows no model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers

from statemark.errors import CheckpointError, InvalidRequestError
from statemark.models.config import read_json, token_ids
from statemark.models.generation import read_generation_defaults
from statemark.models.hub import resolve_model_folder

_SPECIAL_KEYS = ("bos_token", "eos_token", "pad_token", "unk_token", "cls_token", "sep_token", "mask_token")


class Tokenizer:
    """`chat_templates` maps names to Jinja sources; `chat_template` is the default one or None."""

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        *,
        special_tokens: dict[str, str],
        eos_token_ids: tuple[int, ...],
        chat_templates: dict[str, str],
    ) -> None:
        self._inner = inner
        self.special_tokens = special_tokens
        self.eos_token_ids = eos_token_ids
        self.chat_templates = chat_templates
        # Including added tokens, whose ids may lie beyond the rest with a gap between.
        self.vocab_size = max(inner.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def chat_template(self) -> str | None:
        return self.chat_templates.get("default")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self.encode_with_spans(text, add_special_tokens)[0]

    def encode_with_spans(self, text: str, add_special_tokens: bool = True) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids, and for each the characters [start, end) of `text` that it stands for."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"the text is not valid Unicode: character {error.start} is half of a pair, or a byte that was no text",
                hint="send text as UTF-8",
                param="prompt",
            ) from None
        # A batch of one: unlike `encode`, it lets other threads run meanwhile, which a server needs for long texts.
        encoding = self._inner.encode_batch([text], add_special_tokens=add_special_tokens)[0]
        return list(encoding.ids), list(encoding.offsets)

    def longest_token(self) -> int:
        """Bytes of the longest spelling in the vocabulary: a text needs at least its own length over this in tokens."""
        return max((len(token.encode()) for token in self._inner.get_vocab(with_added_tokens=True)), default=1)

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return str(self._inner.decode(ids, skip_special_tokens=skip_special_tokens))

    def to_json(self) -> str:
        """The tokenizer as tokenizer.json has it."""
        return str(self._inner.to_str())

    def token(self, token_id: int) -> str:
        """The vocabulary's spelling of one id; empty for ids that the tokenizer doesn't have."""
        return self._inner.id_to_token(token_id) or ""

    def id(self, token: str) -> int | None:
        found = self._inner.token_to_id(token)
        return None if found is None else int(found)


def load_tokenizer(path_or_id: str | Path) -> Tokenizer:
    """Load the tokenizer of a model folder or hub id."""
    folder = resolve_model_folder(path_or_id)
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise CheckpointError(
            f"no tokenizer in {folder}: tokenizer.json is absent",
            hint="copy it from the original model, or save it with transformers' fast tokenizer",
        )
    try:
        inner = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(f"{file} can't be read: {error}", hint="copy or download the file again") from error
    settings = _settings(folder)
    special = _special_tokens(folder, settings)
    return Tokenizer(
        inner,
        special_tokens=special,
        eos_token_ids=_eos_ids(folder, inner, special),
        chat_templates=_chat_templates(folder, settings),
    )


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    return read_json(path, "") if path.exists() else {}


def _special_tokens(folder: Path, settings: dict[str, Any]) -> dict[str, str]:
    beside = folder / "special_tokens_map.json"
    found: dict[str, str] = {}
    for source in (read_json(beside, "") if beside.exists() else {}, settings):
        for key in _SPECIAL_KEYS:
            value = source.get(key)
            if isinstance(value, dict):  # a serialised AddedToken
                value = value.get("content")
            if isinstance(value, str):
                found[key] = value
    return found


def _eos_ids(folder: Path, inner: tokenizers.Tokenizer, special: dict[str, str]) -> tuple[int, ...]:
    """All ids that any file calls an end: chat models end a turn with another token than a document."""
    ids = set(read_generation_defaults(folder).eos_token_ids)
    own = inner.token_to_id(special["eos_token"]) if "eos_token" in special else None
    if own is not None:
        ids.add(int(own))
    if (folder / "config.json").exists():
        config = read_json(folder / "config.json", "")
        text = config.get("text_config")
        for level in (config, text if isinstance(text, dict) else {}):
            ids.update(token_ids("eos_token_id", level.get("eos_token_id")))
    return tuple(sorted(ids))


def _chat_templates(folder: Path, settings: dict[str, Any]) -> dict[str, str]:
    """Files win over tokenizer_config.json, as in transformers."""
    inline = settings.get("chat_template")
    templates: dict[str, str] = {}
    if isinstance(inline, str):
        templates["default"] = inline
    elif isinstance(inline, list):
        for item in inline:
            if not isinstance(item, dict) or not all(isinstance(item.get(k), str) for k in ("name", "template")):
                raise CheckpointError("tokenizer_config.json: chat_template must list objects with name and template")
            templates[item["name"]] = item["template"]
    elif inline is not None:
        raise CheckpointError("tokenizer_config.json: chat_template must be a string or a list of named templates")
    for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[file.stem] = file.read_text(encoding="utf-8")
    if (folder / "chat_template.jinja").is_file():
        templates["default"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    return templates
