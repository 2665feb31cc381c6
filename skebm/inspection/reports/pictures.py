"""Pictures of a report: figures of matplotlib as SVG that follows the colours of the page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from skebm.inspection._drawing import NAVY
from skebm.inspection.reports.page import Picture

# Stands for the colour of the text of the page, which takes its place in the file, as that of links
# takes the place of blue.
INK = "#010203"
SMALL = 9  # points


def has_matplotlib() -> bool:
    """Whether pictures can be drawn."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def picture(
    caption: str, size: tuple[float, float], draw: Callable[[Any], None], *, prefix: str
) -> list[Picture]:
    """A picture of `size` inches that ``draw(figure)`` draws; none without matplotlib.

    `prefix` keeps the names within the file apart from those of other pictures of the page.
    """
    if not has_matplotlib():
        return []
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasSVG(figure)
    draw(figure)
    figure.patch.set_alpha(0.0)
    for ax in figure.axes:
        _in_ink(ax)
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    return [Picture(_inline(file.getvalue(), prefix, caption), caption)]


def _in_ink(ax: Any) -> None:
    """Give texts, ticks and frames the colour of the text of the page."""
    from matplotlib.text import Text

    ax.patch.set_alpha(0.0)
    for text in ax.findobj(Text):
        text.set_color(INK)
    for spine in ax.spines.values():
        spine.set_edgecolor(INK)
    ax.tick_params(color=INK, labelcolor=INK)


def _inline(svg: str, prefix: str, title: str) -> str:
    """The element of a file, its names numbered, so that equal figures are equal text."""
    svg = svg[svg.index("<svg") :]
    names = dict.fromkeys(re.findall(r'id="([^"]+)"', svg))
    numbers = {name: f"{prefix}-{k}" for k, name in enumerate(names)}
    svg = re.sub(r'id="([^"]+)"', lambda found: f'id="{numbers[found[1]]}"', svg)
    svg = re.sub(
        r'(?<=["(])#([\w.-]+)(?=[")])',
        lambda found: f"#{numbers.get(found[1], found[1])}",
        svg,
    )
    svg = svg.replace(INK, "currentColor").replace(NAVY, "var(--accent)")
    label = title.replace("&", "and").replace('"', "'").replace("<", "below").replace(">", "above")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def outline(ax: Any, values: np.ndarray, edges: np.ndarray, colour: str, label: str) -> None:
    """Draw the histogram of the finite values, as fractions, by its outline."""
    inside = values[np.isfinite(values)]
    weight = np.full(len(inside), 1 / max(1, len(inside)))
    ax.hist(inside, edges, weights=weight, histtype="step", lw=1.6, color=colour, label=label)


def tidy(ax: Any) -> None:
    """Small labels, and no frame where there is no axis."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=SMALL)
