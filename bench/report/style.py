"""The colours and style of all pictures."""

from typing import Any

INK, FAINT, GRID = "#1f2933", "#7b8794", "#e4e7eb"
BLUE, ORANGE, TEAL = "#2f6fdb", "#e8710a", "#0f9d8a"
STYLE: dict[str, Any] = {
    "font.size": 9.5,
    "font.family": "sans-serif",
    "text.color": INK,
    "axes.labelcolor": FAINT,
    "axes.edgecolor": GRID,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "figure.facecolor": "white",
    "svg.fonttype": "none",
}
