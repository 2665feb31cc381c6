"""Draw where skebm stands, by docs/benchmarks.md: ``python -m tools.standing docs/images``."""

import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt

from tools.gallery import STYLE

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
OURS, GREY = "C1", "0.6"
ABOVE = {"loc": "lower center", "bbox_to_anchor": (0.5, 1), "ncols": 2}
TITLE = 22  # points between axes and title, for the legend


def rows_of(section):
    """Cells of the first table of a section, a list for each row, without emphasis."""
    text = PAGE.read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    table = "|" + text.split("\n|", 1)[1].split("\n\n")[0]
    lines = table.splitlines()[2:]
    return [[cell.strip(" *`") for cell in line.strip("|").split("|")] for line in lines]


def draw_detectors(axes):
    """Mean area under the ROC curve of each detector."""
    rows = sorted((float(row[1]), row[0].split(",")[0]) for row in rows_of("Anomaly detection"))
    names = [name.replace("EnergyOutlierDetector()", "skebm") for _, name in rows]
    colours = [OURS if name == "skebm" else GREY for name in names]
    axes.scatter([value for value, _ in rows], names, c=colours)
    axes.set(xlabel="mean AUROC, 22 tables")
    axes.set_title("Anomalies", pad=TITLE)


def draw_numbers(axes):
    """Nats a column by which densities are above a Gaussian mixture."""
    names, ours, kernels = [], [], []
    for name, mixture, peer, stack, *_ in rows_of("Densities of numbers"):
        table, size = name.split(", ")
        n_columns = int(size.split(" x ")[1])
        names.append(table)
        ours.append((float(stack) - float(mixture)) / n_columns)
        kernels.append((float(peer) - float(mixture)) / n_columns)
    axes.axvline(0, color="k", linewidth=1)
    axes.scatter(kernels, names, color=GREY, label="kernels, tuned")
    axes.scatter(ours, names, color=OURS, label="skebm")
    axes.set_xlabel("nats a column above a Gaussian mixture")
    axes.set_title("Densities of numbers", pad=TITLE)
    axes.legend(**ABOVE)


def draw_bits(axes):
    """Nats by which densities of bits are above a Chow-Liu tree."""
    names, ours, circuit = [], [], []
    for name, _, default, tree, _, published in rows_of("Densities of bits"):
        names.append(name)
        ours.append(float(default) - float(tree))
        circuit.append(float(re.match(r"[-.\d]+", published)[0]) - float(tree))
    axes.scatter(circuit, names, color=GREY, label="HCLT, published")
    axes.scatter(ours, names, color=OURS, label="skebm")
    axes.set_xlabel("nats above a Chow-Liu tree")
    axes.set_title("Densities of bits", pad=TITLE)
    axes.legend(**ABOVE)


def draw():
    """Detectors, densities of numbers and densities of bits, side by side."""
    plt.style.use(STYLE)
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.6))
    for panel, draw_panel in zip(axes, (draw_detectors, draw_numbers, draw_bits), strict=True):
        draw_panel(panel)
    return figure


if __name__ == "__main__":
    draw().savefig(Path(sys.argv[1]) / "standing.png", dpi=96)
