"""Measures right answers by context length on held-out documents: `python -m training.evaluate [--checkpoint last]`.

An answer is right if greedy decoding would give the expected sentence exactly, think section included. Greedy
decoding gives it if and only if each of its tokens is the likeliest after the ones before it, so one forward tells.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

from training.facts import STYLES
from training.model import Model
from training.rows import BUNDLED, Row, RowMaker, held_out_chat, load_tokenizer, render_head, render_turn
from training.shape import Shape

RUN = Path(__file__).resolve().parent / "run"
LENGTHS = (100, 300, 700, 1500, 2000)


def held_out(maker: RowMaker, length: int, index: int, mode: str, turns: int, styles: int) -> Row:
    """Conversation number `index` as a row; the history is the right answers, only the last answer is scored."""
    system, asked = held_out_chat(length, index, turns, styles)
    texts = [render_head(system)] if system else []
    for i, t in enumerate(asked):
        texts.append(render_turn(t.user, t.question, mode if i + 1 == len(asked) else "history"))
    pieces = maker.encode(texts)
    head, bodies = (pieces[0], pieces[1:]) if system else ([], pieces)
    return maker.assemble(head, bodies, None, scored={len(bodies) - 1})


@torch.no_grad()
def right(model: Model, row: Row) -> bool:
    targets = torch.from_numpy(row.targets)
    counts = targets >= 0
    logits = model.logits(model.hidden(torch.from_numpy(row.ids)[None])[0, counts])
    return bool((logits.argmax(-1) == targets[counts]).all())


def evaluate(
    model: Model, lengths: tuple[int, ...], documents: int, modes: tuple[str, ...], turns: int, styles: int
) -> list[dict[str, object]]:
    maker = RowMaker(load_tokenizer())
    results: list[dict[str, object]] = []
    for length in lengths:
        for mode in modes:
            started, correct, tokens = time.monotonic(), 0, 0
            for index in range(documents):
                row = held_out(maker, length, index, mode, turns, styles)
                tokens += len(row.ids)
                correct += right(model, row)
                if sys.stderr.isatty() and index % 10 == 0:
                    print(f"\r{length} {mode} {index}/{documents}", end="", file=sys.stderr)
            results.append(
                {
                    "context": length,
                    "mean_tokens": round(tokens / documents),
                    "mode": mode,
                    "styles": styles,
                    "documents": documents,
                    "right": correct,
                    "accuracy": round(correct / documents, 4),
                    "seconds": round(time.monotonic() - started, 1),
                }
            )
            print(json.dumps(results[-1]), flush=True)
    return results


def load(checkpoint: str | None) -> Model:
    """A training checkpoint by name, or else the bundled weights (as shipped: rounded to bfloat16)."""
    if checkpoint:
        saved = torch.load(RUN / f"{checkpoint}.pt")
        model = Model(Shape(**saved["shape"]))
        model.load_state_dict(saved["model"])
        return model
    config = json.loads((BUNDLED / "config.json").read_text())
    model = Model(Shape.from_config(config))
    model.load_published({name: tensor.float() for name, tensor in load_file(BUNDLED / "model.safetensors").items()})
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--checkpoint", help="a name in training/run (last, stage2, ...) instead of the bundled weights"
    )
    parser.add_argument("--documents", type=int, default=500)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--modes", nargs="+", default=["think", "empty"], choices=["think", "empty"])
    parser.add_argument("--turns", type=int, default=4, help="at most so many turns; the last is scored")
    parser.add_argument("--styles", type=int, default=len(STYLES), help=f"the first so many of {', '.join(STYLES)}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the results here as JSON")
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    results = evaluate(load(a.checkpoint), tuple(a.lengths), a.documents, tuple(a.modes), a.turns, a.styles)
    if a.out:
        a.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
