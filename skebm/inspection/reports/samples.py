"""Rows that a model draws beside rows of the data."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.inspection import permutation_importance
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import NearestNeighbors

from skebm.inspection._drawing import NAVY, ORANGE
from skebm.inspection.reports.columns import (
    SharedColumn,
    filled,
    known,
    rank_correlations,
    shared_columns,
)
from skebm.inspection.reports.page import NotSaidError, Section, Tabulated, number, with_error
from skebm.inspection.reports.pictures import SMALL, outline, picture, tidy
from skebm.inspection.reports.subject import Subject

# Columns that are listed and drawn, pairs, levels of a bar chart, bins of a histogram.
MOST_LISTED, MOST_DRAWN, MOST_PAIRS, MOST_LEVELS, N_BINS = 12, 6, 3, 8, 24
# Points of each kind in a scatter plot.
MOST_POINTS = 300
# Columns that the classifier is given, and of whose pairs correlations are computed.
MOST_COLUMNS = 400


class TwoSampleTest(NamedTuple):
    """How well a classifier tells draws from rows: AUROC 0.5 if not at all, and by what."""

    auroc: float
    error: float
    columns: list[tuple[str, float]]


def two_sample_test(pairs: list[SharedColumn], seed: int) -> TwoSampleTest:
    """AUROC of boosted trees on held-out folds, and the columns whose permutation costs most.

    Lopez-Paz and Oquab (2017), "Revisiting classifier two-sample tests", ICLR, with boosted trees.
    """
    pairs = [one for one in pairs if len(known(one.rows)) and len(known(one.draws))]
    if not pairs:
        raise NotSaidError("no entry of the rows is known")
    ours = np.column_stack([pair.rows for pair in pairs])
    theirs = np.column_stack([pair.draws for pair in pairs])
    n = min(len(ours), len(theirs))
    if n < 20:
        raise NotSaidError("fewer than 20 rows do not tell draws from rows")
    random = np.random.RandomState(seed)  # tables may be sorted
    some = [random.permutation(len(part))[:n] for part in (ours, theirs)]
    X, y = np.concatenate([ours[some[0]], theirs[some[1]]]), np.repeat([0, 1], n)
    score, importance = np.empty(2 * n), np.zeros(len(pairs))
    for k, (train, test) in enumerate(
        StratifiedKFold(3, shuffle=True, random_state=seed).split(X, y)
    ):
        model = HistGradientBoostingClassifier(max_iter=60, random_state=seed).fit(
            X[train], y[train]
        )
        score[test] = model.predict_proba(X[test])[:, 1]
        if k == 0 and len(pairs) <= 60:
            importance = permutation_importance(
                model, X[test], y[test], scoring="roc_auc", n_repeats=2, random_state=seed
            ).importances_mean
    auroc = float(roc_auc_score(y, score))
    order = np.argsort(-importance, kind="stable")[:3]
    named = [(pairs[j].name, float(importance[j])) for j in order if importance[j] > 0.01]
    # Hanley and McNeil (1982), with as many rows as draws.
    q1, q2 = auroc / (2 - auroc), 2 * auroc**2 / (1 + auroc)
    variance = auroc * (1 - auroc) + (n - 1) * (q1 + q2 - 2 * auroc**2)
    return TwoSampleTest(auroc, math.sqrt(max(variance, 0.0)) / n, named)


class NearestTrainingRows(NamedTuple):
    """Distances to the nearest training row, in standard deviations of the columns.

    Attributes
    ----------
    of_rows, of_draws : float
        Medians.
    share_of_rows, share_of_draws : float
        Shares that equal a training row.
    """

    of_rows: float
    of_draws: float
    share_of_rows: float
    share_of_draws: float


def nearest_training_rows(columns: list[SharedColumn]) -> NearestTrainingRows:
    """Whether draws copy training rows: distances of draws and of test rows to the nearest one."""
    scale = [
        1.0 if one.levels is not None else float(np.std(known(one.train))) or 1.0 for one in columns
    ]
    train, test, drawn = (
        filled([getattr(one, of) for one in columns], scale) for of in ("train", "rows", "draws")
    )
    nearest = NearestNeighbors(n_neighbors=1).fit(train)
    rows, draws = (nearest.kneighbors(part)[0][:, 0] for part in (test, drawn))
    equal = [float((part <= 1e-9).mean()) for part in (rows, draws)]
    return NearestTrainingRows(float(np.median(rows)), float(np.median(draws)), *equal)


# ------------------------------------------------------------------------------
# Section
# ------------------------------------------------------------------------------


def samples_section(subject: Subject) -> Section | None:
    """Draws of the model beside rows."""
    if not subject.draws_rows:
        return None
    X, is_test, draws = subject.rows, subject.is_test, subject.draws
    has_train = is_test and subject.X_train is not None
    pairs = shared_columns(X, draws, subject.train if has_train else None)
    rows = "test rows" if is_test else "training rows"
    section = Section(f"Do its draws look like {rows}?")
    section.blocks += _image_pictures(subject, X, draws)
    if len(pairs) <= MOST_COLUMNS:
        _say_of_test(section, two_sample_test(pairs, subject.seed))
    _say_of_columns(section, pairs)
    if 1 < len(pairs) <= MOST_COLUMNS:
        _say_of_pairs(section, pairs)
    if has_train and len(pairs) <= MOST_COLUMNS:
        _say_of_copies(section, nearest_training_rows(pairs))
    return section


def _say_of_test(section: Section, found: TwoSampleTest) -> None:
    apart = found.auroc - 2 * found.error > 0.5
    by = ", ".join(f"{name} ({number(loss, 2)})" for name, loss in found.columns)
    said = (
        f"Boosted trees tell draws from rows with an AUROC of "
        f"{with_error(found.auroc, found.error)}; 0.5 would be not at all."
    )
    if apart and by:
        said += f" What they lose most by if a column is permuted: {by}."
    section.blocks.append(said)
    section.facts["two_sample_auroc"] = found.auroc
    section.facts["two_sample_columns"] = found.columns


def _say_of_columns(section: Section, pairs: list[SharedColumn]) -> None:
    order = sorted(pairs, key=lambda one: one.by_chance - one.distance)
    listed = [
        (one.name, round(one.distance, 3), round(one.by_chance, 3), *_middle(one))
        for one in order[:MOST_LISTED]
    ]
    n_beyond = sum(one.distance > one.by_chance for one in pairs)
    section.blocks.append(
        f"Columns by themselves: {n_beyond} of {len(pairs)} differ by more than chance "
        "(Kolmogorov-Smirnov distance of numbers, total variation of levels)."
    )
    names = ("column", "distance", "by chance", "mean or share, rows", "draws")
    section.blocks.append(Tabulated(names, listed))
    section.facts["columns_that_differ"] = [
        one.name for one in order if one.distance > one.by_chance
    ]
    drawn = order[:MOST_DRAWN]
    n_wide = min(3, len(drawn))
    n_high = math.ceil(len(drawn) / n_wide)

    def draw(figure: Any) -> None:
        axes = np.ravel(figure.subplots(n_high, n_wide, squeeze=False))
        for ax, one in zip(axes, drawn, strict=False):
            _draw_column(ax, one)
        for ax in axes[len(drawn) :]:
            ax.set_axis_off()
        axes[0].legend(frameon=False, fontsize=SMALL)

    caption = "The columns that differ most: rows in blue, draws in orange."
    size = (7.4, 0.4 + 1.9 * n_high)
    section.blocks += picture(caption, size, draw, prefix="columns")


def _draw_column(ax: Any, one: SharedColumn) -> None:
    if one.levels is None:
        both = np.concatenate([one.rows, one.draws])
        low, high = np.quantile(both[np.isfinite(both)], [0.005, 0.995])
        edges = np.linspace(low, high if high > low else low + 1, N_BINS + 1)
        for values, colour, label in ((one.rows, NAVY, "rows"), (one.draws, ORANGE, "draws")):
            outline(ax, values, edges, colour, label)
    else:
        shares = [one.fractions(one.rows), one.fractions(one.draws)]
        order = np.arange(len(one.levels))
        if len(order) > MOST_LEVELS:
            order = np.argsort(-shares[0], kind="stable")[:MOST_LEVELS]
        at = np.arange(len(order))
        ax.bar(at - 0.2, shares[0][order], 0.4, color=NAVY, label="rows")
        ax.bar(at + 0.2, shares[1][order], 0.4, color=ORANGE, label="draws")
        ax.set_xticks(at, [_shorter(one.levels[k]) for k in order])
    ax.set_yticks([])
    ax.set_title(_shorter(one.name, 24), fontsize=SMALL)
    tidy(ax)


def _say_of_pairs(section: Section, pairs: list[SharedColumn]) -> None:
    """Pairs whose rank correlations differ most."""
    usable = [one for one in pairs if one.has_order]
    if len(usable) < 2:
        return
    ours = rank_correlations([one.rows for one in usable])
    theirs = rank_correlations([one.draws for one in usable])
    gap = np.triu(np.abs(ours - theirs), 1)
    order = np.argsort(-gap, axis=None, kind="stable")[:5]
    worst = [tuple(int(k) for k in np.unravel_index(at, gap.shape)) for at in order]
    worst = [(i, j) for i, j in worst if i < j]
    listed = [
        (usable[i].name, usable[j].name, round(ours[i, j], 2), round(theirs[i, j], 2))
        for i, j in worst
    ]
    section.blocks.append("Pairs of columns whose rank correlations differ most:")
    section.blocks.append(Tabulated(("column", "and", "rows", "draws"), listed))
    section.facts["pairs"] = listed
    numbers = [(i, j) for i, j in worst if usable[i].levels is None and usable[j].levels is None]
    shown = numbers[:MOST_PAIRS]
    if not shown:
        return

    def draw(figure: Any) -> None:
        axes = np.ravel(figure.subplots(1, len(shown), squeeze=False))
        for ax, (i, j) in zip(axes, shown, strict=True):
            one, other = usable[i], usable[j]
            for of, colour in (("draws", ORANGE), ("rows", NAVY)):
                x, y = getattr(one, of), getattr(other, of)
                step = math.ceil(len(x) / MOST_POINTS)
                ax.plot(x[::step], y[::step], ".", ms=3, alpha=0.7, color=colour)
            ax.set_xlabel(_shorter(one.name, 24), fontsize=SMALL)
            ax.set_ylabel(_shorter(other.name, 24), fontsize=SMALL)
            tidy(ax)

    caption = "The pairs of numbers that differ most: some rows in blue, draws in orange."
    section.blocks += picture(caption, (2.5 * len(shown), 2.4), draw, prefix="pairs")


def _say_of_copies(section: Section, found: NearestTrainingRows) -> None:
    ratio = found.of_draws / found.of_rows if found.of_rows > 0 else math.nan
    said = (
        f"The nearest training row is {number(found.of_draws, 2)} standard deviations from a draw "
        f"and {number(found.of_rows, 2)} from a test row (medians)"
    )
    if found.share_of_draws > 0 or found.share_of_rows > 0:
        said += (
            f"; {100 * found.share_of_draws:.2g} % of the draws equal a training row, and "
            f"{100 * found.share_of_rows:.2g} % of the test rows"
        )
    near = (ratio < 0.5) or found.share_of_draws > 2 * found.share_of_rows + 0.05
    section.blocks.append(said + (": draws are near copies of training rows." if near else "."))
    section.facts["copies"] = found._asdict()


def _image_pictures(subject: Subject, X: Any, draws: Any) -> list[Any]:
    """Images side by side, where rows are images."""
    shape = getattr(X, "shape", ())
    if len(shape) not in (3, 4):
        return []

    def draw(figure: Any) -> None:
        axes = figure.subplots(2, 8)
        for line, rows in zip(axes, (np.asarray(X), np.asarray(draws)), strict=True):
            low, high = np.nanquantile(rows, [0.01, 0.99])
            for ax, image in zip(line, rows, strict=False):
                shown = np.moveaxis(image, 0, -1) if image.ndim == 3 else image
                shown = shown[..., 0] if shown.ndim == 3 and shown.shape[2] != 3 else shown
                shown = np.clip((shown - low) / max(high - low, 1e-12), 0, 1)
                ax.imshow(shown, cmap="gray", vmin=0, vmax=1)
                ax.set_axis_off()

    return picture("Rows above, draws below.", (7.4, 2.0), draw, prefix="images")


def _middle(one: SharedColumn) -> tuple[str, str]:
    """Means of numbers, or the share of the commonest level."""
    ours, theirs = known(one.rows), known(one.draws)
    if not len(ours) or not len(theirs):
        return "", ""
    if one.levels is None:
        return number(float(ours.mean())), number(float(theirs.mean()))
    top = int(one.fractions(ours).argmax())
    share = number(float(one.fractions(ours)[top]), 2), number(float(one.fractions(theirs)[top]), 2)
    return f"{_shorter(one.levels[top])}: {share[0]}", share[1]


def _shorter(name: str, most: int = 12) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
