"""The picture of the README is drawn from the tables of the benchmarks page."""

import matplotlib.pyplot as plt

from tools import standing


def test_each_panel_has_the_rows_of_its_table():
    figure = standing.draw()
    for axes, section in zip(
        figure.axes,
        ("Anomaly detection", "Densities of numbers", "Densities of bits"),
        strict=True,
    ):
        assert len(axes.get_yticklabels()) == len(standing.rows_of(section)) > 5
    plt.close(figure)
