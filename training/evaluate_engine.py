"""The same measurement through Statemark's own engine: `python -m training.evaluate_engine`. Needs no torch.

Real chats: the model's own answers are its history, every turn is scored, prefix caching is on as in use.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from statemark import LLM, SamplingParams
from training.facts import STYLES
from training.rows import Turn, held_out_chat

GROUP = 16


def spoken(text: str) -> str:
    """The answer without its think section."""
    return text.rsplit("</think>", 1)[-1].strip()


def run_group(llm: LLM, chats: list[tuple[str, list[Turn]]], thinking: bool) -> tuple[int, int, int, int]:
    """(right, asked, prompt tokens, cached tokens) over all turns of some chats that run side by side."""
    right = asked = tokens = cached = 0
    histories: list[list[dict[str, Any]]] = [[{"role": "system", "content": s}] if s else [] for s, _ in chats]
    for number in range(max(len(turns) for _, turns in chats)):
        active = [i for i, (_, turns) in enumerate(chats) if number < len(turns)]
        for i in active:
            histories[i].append({"role": "user", "content": chats[i][1][number].user})
        outputs = llm.chat(
            [histories[i] for i in active],
            SamplingParams(temperature=0.0, max_tokens=64),
            chat_template_kwargs={"enable_thinking": thinking},
            use_tqdm=False,
        )
        for i, output in zip(active, outputs, strict=True):
            answer = spoken(output.outputs[0].text)
            histories[i].append({"role": "assistant", "content": answer})
            right += answer == chats[i][1][number].question.answer
            asked += 1
            tokens += len(output.prompt_token_ids or ())
            cached += output.num_cached_tokens or 0
    return right, asked, tokens, cached


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a folder; default: the bundled model")
    parser.add_argument("--documents", type=int, default=500)
    parser.add_argument("--lengths", type=int, nargs="+", default=[100, 300, 700, 1500, 2000])
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--styles", type=int, default=len(STYLES), help=f"the first so many of {', '.join(STYLES)}")
    parser.add_argument("--no-thinking", action="store_true")
    parser.add_argument("--out", type=Path, help="write the results here as JSON")
    a = parser.parse_args()
    llm = LLM(a.model)
    results = []
    for length in a.lengths:
        started, total = time.monotonic(), [0, 0, 0, 0]
        for first in range(0, a.documents, GROUP):
            chats = [held_out_chat(length, i, a.turns, a.styles) for i in range(first, min(first + GROUP, a.documents))]
            total = [x + y for x, y in zip(total, run_group(llm, chats, not a.no_thinking), strict=True)]
        right, asked, tokens, cached = total
        results.append(
            {
                "context": length,
                "mode": "empty" if a.no_thinking else "think",
                "styles": a.styles,
                "documents": a.documents,
                "questions": asked,
                "right": right,
                "accuracy": round(right / asked, 4),
                "mean_prompt_tokens": round(tokens / asked),
                "cached_share": round(cached / tokens, 3),
                "seconds": round(time.monotonic() - started, 1),
            }
        )
        print(json.dumps(results[-1]), flush=True)
    if a.out:
        a.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
