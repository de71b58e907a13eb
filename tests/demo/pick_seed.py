"""Seeds with which the bundled model is right in all that the tour asks, and what the fault does there.

After training the model again: `python -m tests.demo.pick_seed`, and the best seed goes to demo/document.py.
"""

from __future__ import annotations

import argparse

from statemark import bundled
from statemark.demo import Stage, Tour
from statemark.demo.tour import DOCUMENT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=str(bundled.path()))
    parser.add_argument("--tokens", type=int, default=DOCUMENT)
    parser.add_argument("--seeds", type=int, default=20)
    a = parser.parse_args()
    stage, asked, right = Stage(a.model), 0, 0
    for seed in range(a.seeds):
        tour = Tour(stage, tokens=a.tokens, seed=seed)
        turns = [*tour.chat(), tour.second_client()]
        asked, right = asked + len(turns), right + sum(turn.right for turn in turns)
        words = f"seed {seed}: {sum(turn.right for turn in turns)} of {len(turns)} right"
        if all(turn.right for turn in turns):
            faulty = list(tour.with_fault())
            words += f", {sum(result.right for result in faulty)} with the fault: "
            words += " / ".join(result.reply.answer for result in faulty)
        print(words, flush=True)
    print(f"{right} of {asked} right")


if __name__ == "__main__":
    main()
