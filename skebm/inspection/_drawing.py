"""What displays share."""

from __future__ import annotations

from typing import Any

# Colours that the colour-blind tell apart.
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
