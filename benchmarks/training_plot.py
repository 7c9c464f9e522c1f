"""Loss curves as one SVG, without a plotting library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 860, 480
"""Pixels of the picture."""

_LEFT, _TOP, _RIGHT, _BOTTOM = 60, 50, 190, 45
_COLOURS = (
    "#000000",
    "#1f77b4",
    "#d62728",
    "#9467bd",
    "#2ca02c",
    "#ff7f0e",
    "#8c564b",
    "#17becf",
    "#bcbd22",
    "#7f7f7f",
)


def write_plot(path: Path, curves: Mapping[str, Sequence[tuple[int, float]]], caption: str) -> None:
    """Draw loss over inner steps; the last point of each curve is after the flush."""
    steps = [step for points in curves.values() for step, _ in points]
    losses = [loss for points in curves.values() for _, loss in points]
    low, high = min(losses), min(max(losses), 2 * min(losses))
    last = max(steps)

    def place(step: int, loss: float) -> str:
        x = _LEFT + (WIDTH - _LEFT - _RIGHT) * step / last
        y = _TOP + (HEIGHT - _TOP - _BOTTOM) * (high - min(loss, high)) / max(high - low, 1e-9)
        return f"{x:.1f},{y:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="18" font-size="14">Held-out loss of the agreed weights</text>',
        f'<text x="{_LEFT}" y="36" font-size="10" fill="#555">{escape(caption)}</text>',
    ]
    for index in range(6):
        loss = low + (high - low) * index / 5
        x, y = place(0, loss).split(",")
        parts.append(f'<line x1="{x}" y1="{y}" x2="{WIDTH - _RIGHT}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="8" y="{float(y) + 4:.1f}" font-size="11">{loss:.3f}</text>')
        step = last * index // 5
        parts.append(f'<text x="{place(step, low).split(",")[0]}" y="{HEIGHT - 22}" font-size="11">{step}</text>')
    parts.append(f'<text x="{_LEFT}" y="{HEIGHT - 6}" font-size="11">inner steps of each worker</text>')
    ranked = sorted(curves, key=lambda name: curves[name][-1][1])
    for index, (name, points) in enumerate(curves.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        line = " ".join(place(step, loss) for step, loss in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        row = _TOP + 18 * ranked.index(name)
        parts.append(f'<rect x="{WIDTH - _RIGHT + 12}" y="{row}" width="12" height="4" fill="{colour}"/>')
        label = f"{name} {points[-1][1]:.4f}"
        parts.append(f'<text x="{WIDTH - _RIGHT + 30}" y="{row + 6}" font-size="11">{escape(label)}</text>')
    parts.append("</svg>\n")
    path.write_text("\n".join(parts))
