"""The one checkpoint that all engines run, and the forms of it that they read. Makes what is missing below a folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from environments import Peers, say
from llama_cpp import converted


def checkpoint(folder: Path, like: str) -> Path:
    """Random weights in bfloat16, of a named shape."""
    model = folder / like
    if not (model / "config.json").exists():
        from statemark.models.make_model import make_model

        say(f"making {model}")
        make_model(model, like=like)
    return model


def quantized(model: Path, quantization: str) -> Path:
    """What `statemark quantize` writes of it."""
    out = model.with_name(f"{model.name}-{quantization}")
    if not (out / "config.json").exists():
        from statemark.models.quantize import quantize_model

        say(f"making {out}")
        quantize_model(str(model), out, quantization)
    return out


def gguf(model: Path, weights: str, peers: Peers) -> Path:
    return converted(model.parent, model, weights, peers)


def openvino(model: Path, peers: Peers) -> Path:
    """What optimum exports of it, in 16 bits."""
    out = model.with_name(f"{model.name}-openvino")
    if not (out / "openvino_model.xml").exists():
        say(f"exporting {out}")
        unfinished = out.with_suffix(".part")
        shutil.rmtree(unfinished, ignore_errors=True)
        command = [peers.openvino_python.with_name("optimum-cli"), "export", "openvino", "--model", model]
        options = ["--task", "text-generation-with-past", "--weight-format", "fp16"]
        subprocess.run([*command, *options, unfinished], check=True, stdout=sys.stderr)
        unfinished.rename(out)
    return out
