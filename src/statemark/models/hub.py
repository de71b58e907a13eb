"""From what a user typed to a model folder: a local path, or a hub id where a hub (or its cache) can be reached."""

from __future__ import annotations

import re
from pathlib import Path

from statemark.errors import CheckpointError

_FILES = ["*.json", "*.safetensors", "*.jinja"]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def resolve_model_folder(path_or_id: str | Path) -> Path:
    """The folder that holds the model's files."""
    if not str(path_or_id):
        raise CheckpointError("the model's name is empty", hint="give a folder, or a hub id such as owner/name")
    path = Path(path_or_id).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise CheckpointError(f"{path} is a file", hint="give the folder that holds config.json and the weights")
    if not isinstance(path_or_id, str) or not _HUB_ID.fullmatch(path_or_id):
        raise CheckpointError(f"no model folder at {path}", hint="give a folder, or a hub id such as owner/name")
    return _from_hub(path_or_id)


def _from_hub(model_id: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise CheckpointError(
            f"no folder {model_id} here, and hub ids need the huggingface-hub package",
            hint="pip install 'statemark[hub]', or give a local folder",
        ) from None
    try:
        return Path(snapshot_download(model_id, allow_patterns=_FILES))
    except Exception as error:  # the client raises many kinds: network, HTTP, authorisation, offline, unknown names
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"no folder {model_id} here, and it can't be fetched from the hub: {reason}",
            hint="check the name, the network and HF_HUB_OFFLINE, or give a local folder",
        ) from error
