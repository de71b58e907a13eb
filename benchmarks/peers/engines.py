"""The engines of the comparison as plain data: who they are, with what they are compared. Starts nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """`family` says how it is run; `weights` is the precision in that family's own words.

    `rivals`: for each of ours, the groups of peers that it is compared with. A group's faster engine counts, so a
    group is a question such as "how much faster than the better of these two".
    """

    label: str
    family: str
    weights: str
    rivals: tuple[tuple[str, ...], ...] = ()


ENGINES = {
    "statemark": Kind(
        "Statemark bf16", "statemark", "bfloat16", (("vllm-bf16", "llama-bf16"), ("openvino-bf16",))
    ),
    "vllm-bf16": Kind("vLLM CPU bf16", "vllm", "bfloat16"),
    "llama-bf16": Kind("llama.cpp BF16", "llama", "BF16"),
    "openvino-bf16": Kind("OpenVINO GenAI bf16", "openvino", "bf16"),
    "statemark-int8": Kind("Statemark int8", "statemark", "int8", (("llama-q8_0",),)),
    "llama-q8_0": Kind("llama.cpp Q8_0", "llama", "Q8_0"),
    "statemark-int4": Kind("Statemark int4", "statemark", "int4", (("llama-q4_k_m",),)),
    "llama-q4_k_m": Kind("llama.cpp Q4_K_M", "llama", "Q4_K_M"),
}  # fmt: skip

# OpenVINO is asked for by name: its environment and export take longer than those of the others together.
DEFAULT = tuple(name for name in ENGINES if not name.startswith("openvino"))
FAMILIES = ("statemark", "vllm", "llama", "openvino")


def chosen(names: str) -> list[str]:
    """The engines of a comma-separated list, in the table's order. SystemExit names what there is."""
    wanted = names.split(",")
    unknown = [name for name in wanted if name not in ENGINES]
    if unknown:
        raise SystemExit(f"error: unknown engine {unknown[0]!r}\n\nhint: there are {', '.join(ENGINES)}")
    return [name for name in ENGINES if name in wanted]
