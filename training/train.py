"""Trains the bundled model: `python -m training.train --minutes 55`. Stop it when you like; the same command resumes.

Two worker processes, one core each, share weights and gradients in memory and meet once a step: on a busy machine that
loses far less than two threads inside every operation.
"""

import argparse
import csv
import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from training.model import Model
from training.optimizer import Optimizer
from training.rows import IGNORE, RowMaker, load_tokenizer
from training.shape import Shape

RUN = Path(__file__).resolve().parent / "run"
# (row length, fewest facts, most facts, line styles): the next starts when the answers of this one are mostly right.
# One line style first: binding a value to its key is the hard step, and it comes much sooner in one form.
STAGES = [
    (160, 2, 8, 1),
    (256, 4, 24, 1),
    (256, 4, 16, 4),
    (512, 10, 40, 4),
    (1024, 25, 85, 4),
    (2048, 40, 180, 4),
]
ADVANCE = 0.80
WARM_UP = 40


def parameters_of(model: Model) -> list[tuple[str, Tensor, list[int] | None]]:
    """Matrices with the row split of what they fuse; vectors, convolutions, embeddings and the tiny gates to AdamW."""
    splits: dict[str, list[int]] = {}
    s = model.s
    keys, values = s.key_heads * s.key_dim, s.value_heads * s.value_dim
    for i, block in enumerate(model.blocks):
        p = f"blocks.{i}."
        splits[p + "mlp.gate_up"] = [s.intermediate, s.intermediate]
        splits[p + "mlp.down"] = [s.hidden]
        splits[p + "mixer.out_proj"] = [s.hidden]
        if s.is_attention(i):
            splits[p + "mixer.in_proj"] = list(block.mixer.widths)  # type: ignore[arg-type, union-attr]
        else:
            splits[p + "mixer.in_proj"] = [keys, keys, values, values, 2 * s.value_heads]
    return [(name, p, splits.get(name)) for name, p in model.named_parameters()]


def answers_right(logits: Tensor, targets: Tensor, turn: Tensor) -> tuple[int, int]:
    """(answers whose every token is the likeliest one, answers): exactly what greedy decoding would get right."""
    wrong = (logits.argmax(-1) != targets).long()
    _, index = turn.unique(return_inverse=True)
    per_turn = torch.zeros(int(index.max()) + 1, dtype=torch.long).scatter_add_(0, index, wrong)
    return int((per_turn == 0).sum()), per_turn.numel()


def learning_rate(peak: float, step: int, progress: float) -> float:
    """Warm up, hold, then fall linearly over the last fifth of the time."""
    return peak * min(1.0, step / WARM_UP, max(0.02, (1.0 - progress) / 0.2))


def worker(rank: int, model: Model, optimizer: Optimizer, barrier: Any, shared: Tensor, report: Tensor, a: Any) -> None:
    """shared: [step, stage, lr, stop, stop asked for]; written by worker 0 between the barriers, read by both."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches us too; the parent asks for the stop
    maker = RowMaker(load_tokenizer())
    log = Log(a, model, optimizer) if rank == 0 else None
    while True:
        barrier.wait()
        if shared[3]:
            return
        step, stage = int(shared[0]), int(shared[1])
        # The seed names the step and the worker, so a resumed run sees what an uninterrupted one would.
        rng = random.Random(f"train {a.seed} {step} {rank}")
        length, low, high, styles = STAGES[stage]
        # Every later stage keeps some of the earlier ones, or short documents are forgotten.
        rows = [
            maker.training_row(rng, length, (low if rng.random() < 0.8 else 2, high), styles)
            for _ in range(max(1, a.tokens // length))
        ]
        ids, targets, turn = (
            torch.stack([torch.from_numpy(getattr(r, f)) for r in rows]) for f in ("ids", "targets", "turn")
        )
        turn = turn + torch.arange(len(rows))[:, None] * 1000
        counts = targets != IGNORE
        logits = model.logits(model.hidden(ids)[counts])
        loss = F.cross_entropy(logits, targets[counts])
        loss.backward()
        right, answers = answers_right(logits.detach(), targets[counts], turn[counts])
        optimizer.publish(rank)
        report[rank] = torch.tensor([float(loss.detach()), right, answers, ids.numel()])
        barrier.wait()
        norm = optimizer.norm()
        optimizer.step(rank, step, float(shared[2]), a.clip, norm)
        barrier.wait()
        if log is not None:
            log.after_step(shared, report, norm)


class Log:
    """Worker 0's book: schedule, curve, progress bar, checkpoints."""

    def __init__(self, a: Any, model: Model, optimizer: Optimizer) -> None:
        self.a, self.model, self.optimizer = a, model, optimizer
        self.seconds, self.tokens, self.smooth, self.best = 0.0, 0, 0.0, 0.0
        self.last = self.saved = time.monotonic()
        self.stage_steps = 0
        if a.resumed:
            for key in ("seconds", "tokens", "smooth"):
                setattr(self, key, a.resumed[key])
        path = RUN / "curve.csv"
        if a.resumed:  # steps after the checkpoint will be run again
            head, *lines = path.read_text().splitlines(keepends=True)
            path.write_text(head + "".join(x for x in lines if int(x.split(",")[0]) <= a.resumed["step"]))
        self.file = path.open("a", newline="")
        self.writer = csv.writer(self.file)
        if not a.resumed:
            self.writer.writerow(["step", "seconds", "tokens", "stage", "lr", "loss", "norm", "answers_right"])

    def after_step(self, shared: Tensor, report: Tensor, norm: float) -> None:
        now = time.monotonic()
        # A pause (SIGSTOP, a benchmark beside us) is no training time.
        self.seconds += min(now - self.last, 20.0)
        self.last = now
        step, stage = int(shared[0]), int(shared[1])
        self.tokens += int(report[:, 3].sum())
        self.stage_steps += 1
        accuracy = float(report[:, 1].sum() / report[:, 2].sum())
        self.smooth += (accuracy - self.smooth) * 0.06
        loss = float(report[:, 0].mean())
        self.writer.writerow(
            [step, f"{self.seconds:.1f}", self.tokens, stage, f"{float(shared[2]):.6f}", f"{loss:.4f}", f"{norm:.3f}",
             f"{accuracy:.4f}"]
        )  # fmt: skip
        progress = self.seconds / (60 * self.a.minutes)
        if step % 10 == 0:
            self.file.flush()
            done = int(30 * min(progress, 1.0))
            print(
                f"[{'#' * done}{'.' * (30 - done)}] {100 * progress:3.0f} %  step {step}  stage {stage}"
                f"  loss {loss:.3f}  norm {norm:.2f}  right {self.smooth:.3f}  {self.tokens / self.seconds:.0f} tok/s",
                flush=True,
            )
        if self.smooth > ADVANCE and self.stage_steps > 40 and stage + 1 < len(STAGES):
            shared[1] = stage + 1
            self.stage_steps, self.smooth = 0, 0.0
            self.save(step, shared, f"stage{stage}")
        elif progress > 0.6 and stage + 1 < len(STAGES) and self.stage_steps > 40 and self.a.hurry:
            shared[1] = stage + 1
            self.stage_steps = 0
        shared[0] = step + 1
        shared[2] = learning_rate(self.a.lr, step + 1, progress)
        if progress >= 1.0 or shared[4]:
            shared[3] = 1
        if shared[3] or now - self.saved > 120:
            self.save(step, shared, "last")
            self.saved = now

    def save(self, step: int, shared: Tensor, name: str) -> None:
        book = {"seconds": self.seconds, "tokens": self.tokens, "smooth": self.smooth, "stage": int(shared[1])}
        content = {"model": self.model.state_dict(), "optimizer": self.optimizer.state(), "step": step, "book": book}
        content["shape"] = vars(self.model.s)
        path = RUN / f"{name}.pt"
        torch.save(content, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").rename(path)  # a kill while writing must not cost the run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=55.0, help="training time in all, earlier runs counted in")
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--tokens", type=int, default=1280, help="tokens a step and worker")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fresh", action="store_true", help="start over")
    parser.add_argument("--stage", type=int, help="start at this stage of the curriculum")
    parser.add_argument("--hurry", action="store_true", help="go to longer documents late in the run, ready or not")
    a = parser.parse_args()
    RUN.mkdir(exist_ok=True)
    last = RUN / "last.pt"
    saved = torch.load(last) if last.exists() and not a.fresh else None
    torch.manual_seed(a.seed)
    vocab = -(-load_tokenizer().get_vocab_size() // 64) * 64
    model = Model(Shape(**saved["shape"]) if saved else Shape(vocab=vocab))
    model.share_memory()
    optimizer = Optimizer(parameters_of(model))
    shared = torch.zeros(5, dtype=torch.float64).share_memory_()
    shared[0], shared[2] = 1, learning_rate(a.lr, 1, 0.0)
    a.resumed = None
    if saved:
        model.load_state_dict(saved["model"])
        optimizer.load(saved["optimizer"])
        a.resumed = saved["book"] | {"step": saved["step"]}
        shared[0], shared[1] = saved["step"] + 1, saved["book"]["stage"]
        shared[2] = learning_rate(a.lr, saved["step"] + 1, a.resumed["seconds"] / (60 * a.minutes))
    elif (RUN / "curve.csv").exists():
        (RUN / "curve.csv").unlink()
    if a.stage is not None:
        shared[1] = a.stage
    (RUN / "options.json").write_text(json.dumps({k: v for k, v in vars(a).items() if k != "resumed"}, indent=2))
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters; checkpoints and the curve in {RUN}")
    barrier = mp.get_context("spawn").Barrier(2)
    report = torch.zeros(2, 4).share_memory_()
    context = mp.spawn(worker, (model, optimizer, barrier, shared, report, a), nprocs=2, join=False)

    def stop(*_: object) -> None:
        shared[4] = 1  # the workers finish their step and save

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    while not context.join():
        pass


if __name__ == "__main__":
    main()
