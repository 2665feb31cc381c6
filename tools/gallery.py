"""Figures of the examples have one style, and are whole when their block of code ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# Colours, sizes and axes of the figures of the gallery, of pages and of docs/images.
STYLE = Path(__file__).parents[1] / "examples" / "skebm.mplstyle"


def use_style(gallery_conf: dict[str, Any], file: Path | str | None) -> None:
    """Give the figures that follow the style of the gallery, as sphinx-gallery resets modules."""
    import matplotlib.style

    matplotlib.style.use(STYLE)


def empty_panels(figure: Any) -> list[str]:
    """Name the axes of a figure that show nothing.

    Parameters
    ----------
    figure : matplotlib.figure.Figure

    Returns
    -------
    list of str
        A name for each axes that are drawn, with a frame, and hold neither data nor text.
    """
    return [
        f"axes {number} {ax.get_title()}".strip()
        for number, ax in enumerate(figure.axes)
        if ax.get_visible() and ax.axison and not ax.has_data() and not ax.texts
    ]


def whole_figures(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Save the figures of a block of an example, as the scraper of sphinx-gallery for matplotlib.

    Raises
    ------
    ValueError
        If a panel is empty. A page shows a figure as it is at the end of the block that makes it,
        so that a panel that the next block fills stays empty there.
    """
    import matplotlib.pyplot as plt

    for number in plt.get_fignums():
        if empty := empty_panels(plt.figure(number)):
            raise ValueError(
                f"{block_vars['src_file']}, block at line {block[2]}: nothing is drawn in "
                f"{', '.join(empty)}. Make a figure and fill it in the same block."
            )
    from sphinx_gallery.scrapers import matplotlib_scraper

    return matplotlib_scraper(block, block_vars, gallery_conf)
