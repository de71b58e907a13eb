"""Hub ids: through the client's own cache where it is installed, and a clear way out where it isn't."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from statemark.errors import CheckpointError
from statemark.models import load_tokenizer, resolve_model_folder
from statemark.models.random_tokenizer import write_tokenizer


@pytest.fixture
def offline_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache with one model in it, and no network."""
    constants = pytest.importorskip("huggingface_hub.constants")
    repo = tmp_path / "models--someone--tiny"
    snapshot = repo / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(snapshot.name)
    write_tokenizer(snapshot, 300)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return snapshot


def test_a_cached_id_resolves_without_a_network(offline_cache: Path) -> None:
    assert resolve_model_folder("someone/tiny") == offline_cache
    assert load_tokenizer("someone/tiny").vocab_size == 300


def test_an_unknown_id_offline_says_what_to_check(offline_cache: Path) -> None:
    with pytest.raises(CheckpointError, match="someone/other here, and it can't be fetched from the hub") as error:
        resolve_model_folder("someone/other")
    assert "HF_HUB_OFFLINE" in error.value.hint
    assert "\n" not in error.value.message


def test_without_the_client_the_hint_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match="need the huggingface-hub package") as error:
        resolve_model_folder("someone/tiny")
    assert "statemark[hub]" in error.value.hint


def test_a_folder_wins_over_an_id_of_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "someone" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model_folder("someone/tiny") == Path("someone/tiny")


@pytest.mark.parametrize("path", ["./absent", "/absent/folder", "a/b/c", "../x", "~nobody/x", "-x/y"])
def test_paths_are_not_taken_for_ids(path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match="no model folder at"):
        resolve_model_folder(path)
