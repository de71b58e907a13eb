"""Converts a checkpoint to GGUF with llama.cpp's own converter. Runs in an environment that has torch and transformers.

python gguf_convert.py CONVERTER_FOLDER MODEL_FOLDER OUT.gguf [bf16|f32]
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main(converter: Path, model: str, out: str, weights: str = "bf16") -> None:
    sys.path[:0] = [str(converter), str(converter / "gguf-py")]
    from conversion.base import TextModel

    # The converter knows pre-tokenizers by a hash of what they do to a text; a generated tokenizer has none on record.
    # Only the name is at stake, and no text is tokenized here.
    TextModel.get_vocab_base_pre = lambda self, tokenizer: "qwen35"
    sys.argv = ["convert_hf_to_gguf.py", model, "--outtype", weights, "--no-mtp", "--outfile", out]
    runpy.run_path(str(converter / "convert_hf_to_gguf.py"), run_name="__main__")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:5])
