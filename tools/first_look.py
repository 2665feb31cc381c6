"""Draw the picture of the README's first program: ``python -m tools.first_look docs/images``."""

import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt

from tools.gallery import STYLE

README = Path(__file__).parents[1] / "README.md"


def draw(found):
    """Histogram of the surprise, and why one row is anomalous, from the program's names."""
    detector, row, score = found["detector"], found["most_anomalous"], found["score"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.6))
    left.hist(score, bins=40)
    left.axvline(detector.offset_, color="k", linestyle="--", linewidth=1)
    at = {"ha": "right", "va": "top", "multialignment": "right"}
    left.text(detector.offset_ - 0.4, 40, "threshold\nof predict", **at)
    arrow = {"arrowprops": {"arrowstyle": "->", "color": "C1"}, "color": "C1"}
    left.annotate(f"row {row.index[0]}", (score.min(), 1), (score.min(), 12), **arrow)
    left.set(xlabel="minus surprise in nats", ylabel="patients")
    left.locator_params("x", nbins=6)
    reasons = detector.explain(row).to_frame(5)[::-1]
    values = reasons[["feature", "value", "expected"]].itertuples(index=False)
    names = [f"{name} = {value:.4g}, expected {other:.4g}" for name, value, other in values]
    right.barh(names, reasons["contribution"], color="C1")
    right.set(xlabel="contribution in nats")
    return figure


if __name__ == "__main__":
    program = re.search(r"^```python\n(.*?)^```", README.read_text(), re.M | re.S)[1]
    found: dict = {}
    exec(program, found)
    plt.style.use(STYLE)
    draw(found).savefig(Path(sys.argv[1]) / "first_look.png", dpi=96)
