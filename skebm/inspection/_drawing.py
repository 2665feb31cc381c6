"""Colours and axes of the displays."""

from __future__ import annotations

from typing import Any

# A colour-blind safe pair.
NAVY, ORANGE = "#0b5394", "#d55e00"


def pyplot(display: str) -> Any:
    """matplotlib's pyplot, imported when something is drawn."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            f"{display}.plot needs matplotlib, which is not installed: pip install skebm[plot]"
        ) from error
    return plt


def axes_of(display: str, ax: Any, size: tuple[float, float]) -> Any:
    """The axes that are given, or those of a new figure of `size` inches."""
    if ax is not None:
        return ax
    return pyplot(display).figure(figsize=size, layout="constrained").subplots()
