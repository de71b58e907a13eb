"""Draws the run's curve.csv as an SVG: `python -m training.curve`. Loss and right answers over tokens."""

import csv
from pathlib import Path

from training.evaluate import RUN

WIDTH, HEIGHT, MARGIN = 720, 320, 48


def smooth(values: list[float], weight: float = 0.08) -> list[float]:
    out: list[float] = []
    for v in values:
        out.append(v if not out else out[-1] + (v - out[-1]) * weight)
    return out


def polyline(xs: list[float], ys: list[float], top: float, colour: str) -> str:
    last = xs[-1] or 1.0
    points = " ".join(
        f"{MARGIN + x / last * (WIDTH - 2 * MARGIN):.1f},"
        f"{HEIGHT - MARGIN - min(y / top, 1) * (HEIGHT - 2 * MARGIN):.1f}"
        for x, y in zip(xs, ys, strict=True)
    )
    return f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{points}"/>'


def draw(rows: list[dict[str, str]]) -> str:
    tokens = [float(r["tokens"]) / 1e6 for r in rows]
    loss, right = (smooth([float(r[k]) for r in rows]) for k in ("loss", "answers_right"))
    keep = range(0, len(rows), max(1, len(rows) // 600))
    xs = [tokens[i] for i in keep]
    bottom = HEIGHT - MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<path d="M{MARGIN} {MARGIN}V{bottom}H{WIDTH - MARGIN}V{MARGIN}" fill="none" stroke="#888"/>',
        polyline(xs, [loss[i] for i in keep], 3.0, "#c0392b"),
        polyline(xs, [right[i] for i in keep], 1.0, "#2471a3"),
        f'<text x="8" y="{MARGIN}" fill="#c0392b">3.0</text><text x="8" y="{bottom}" fill="#c0392b">loss 0</text>',
        f'<text x="{WIDTH - MARGIN + 4}" y="{MARGIN}" fill="#2471a3">100 %</text>',
        f'<text x="{WIDTH - MARGIN + 4}" y="{bottom}" fill="#2471a3">right</text>',
        f'<text x="{WIDTH // 2}" y="{HEIGHT - 14}" text-anchor="middle">{tokens[-1]:.1f} million tokens</text>',
    ]
    for i in range(1, len(rows)):
        if rows[i]["stage"] != rows[i - 1]["stage"]:
            x = MARGIN + tokens[i] / tokens[-1] * (WIDTH - 2 * MARGIN)
            parts.append(f'<path d="M{x:.1f} {MARGIN}V{bottom}" stroke="#bbb" stroke-dasharray="3 3"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    with (RUN / "curve.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    out = Path(__file__).resolve().parent / "loss_curve.svg"
    out.write_text(draw(rows))
    print(f"{len(rows)} steps drawn in {out}")


if __name__ == "__main__":
    main()
