"""Critical differences of mean ranks, and which ranks a picture joins."""

import pytest

from benchmarks._ranks import critical_difference, draw_ranks, groups

# Demsar (2006), section 3.2.2: four variants of C4.5 on 14 data sets, and table 5a.
RANKS = {"C4.5": 3.143, "C4.5+m": 2.0, "C4.5+cf": 2.893, "C4.5+m+cf": 1.964}


@pytest.mark.parametrize(
    ("n_methods", "quantile"), [(2, 1.960), (4, 2.569), (5, 2.728), (10, 3.164)]
)
def test_the_critical_difference_has_the_published_quantiles(n_methods, quantile):
    error = (n_methods * (n_methods + 1) / (6 * 14)) ** 0.5
    assert critical_difference(n_methods, 14) / error == pytest.approx(quantile, abs=6e-4)


def test_the_published_example_is_one_group():
    # "Even the difference between the best and the worst" is below the critical difference, 1.25.
    difference = critical_difference(4, 14)
    assert difference == pytest.approx(1.25, abs=5e-3)
    assert groups(sorted(RANKS.values()), difference) == [(0, 3)]


@pytest.mark.parametrize(
    ("ranks", "found"),
    [
        ([1.0, 2.0, 3.0, 4.0], [(0, 1), (1, 2), (2, 3)]),
        ([1.0, 1.5, 2.0, 5.0], [(0, 2)]),
        ([1.0, 1.5, 2.0, 2.5, 2.5], [(0, 2), (1, 4)]),
        ([1.0, 3.0, 5.0], []),
    ],
)
def test_groups_are_the_largest_within_the_difference(ranks, found):
    assert groups(ranks, 1.0) == found


def test_the_picture_names_all_methods(tmp_path, monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figures = []
    monkeypatch.setattr(pyplot, "close", figures.append)
    draw_ranks(RANKS, 14, tmp_path / "ranks.png")
    (axes,) = figures[0].axes
    texts = {text.get_text().strip() for text in axes.texts}
    assert {"C4.5+m+cf  2.0", "C4.5+m  2.0", "2.9  C4.5+cf", "3.1  C4.5"} <= texts
    assert "critical difference 1.25" in texts
    assert (tmp_path / "ranks.png").stat().st_size > 0
