"""Boosting of trees that correct a base: noise contrastive estimation in rounds.

There is no gradient of weights here: a fit adds trees one by one, each of which lowers the loss of
a classifier of rows against draws of the model so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from skebm.base.objective import effective_count, weighted_mean
from skebm.distributions import Distribution
from skebm.energies.trees import Bins, Growth, Tree, TreeSum, divided_columns, grow_tree

# Draws of the model in a round: for each row, and at least and at most in all.
DRAWS_PER_ROW, FEWEST_DRAWS, MOST_DRAWS = 20, 20_000, 100_000
# Draws that no tree has seen, by which log Z is estimated while trees are added.
FRESH_PER_ROW, FEWEST_FRESH, MOST_FRESH = 10, 20_000, 50_000
# Most rows of both samples that a tree is grown on.
MOST_ROWS = 30_000
# Numbers of the draws of a round, of those of the base that these are resampled of, and of the rows
# of a tree, at most: of hundreds of columns there are fewer rows, but no fewer than the last one.
NUMBERS_OF_DRAWS, NUMBERS_OF_PROPOSALS, NUMBERS_OF_TREE = 40_000_000, 100_000_000, 10_000_000
FEWEST_OF_WIDE = 2000
# Draws of the base of which those of the model are resampled, relative to their number.
MOST_PROPOSALS = 10
# Trees of a round; trees after the best number, and nats gained, with which rounds end.
TREES_OF_ROUND, PATIENCE, LEAST_GAIN = 100, 30, 0.002
# Effective share of the draws of the base from which on those of the model are resampled of them.
LEAST_SHARE = 0.01
# Training rows on each side of an edge of a column, from which on trees may divide it: a level that
# hardly occurs says nothing of other rows, and a column of names has thousands.
FEWEST_APART = 5
# Rows whose trees are evaluated at a time.
BLOCK = 4096


class Sample(NamedTuple):
    """Rows (n, d) of weights (n,)."""

    x: Tensor
    weight: Tensor


class BoostingSettings(NamedTuple):
    """How trees are added.

    Attributes
    ----------
    learning_rate : float
        Factor on the values of each tree.
    most_trees : int
    growth : Growth
        Of each tree.
    """

    learning_rate: float = 0.1
    most_trees: int = 1500
    growth: Growth = Growth()


class Boosted(NamedTuple):
    """A sum of trees, and how it was found.

    Attributes
    ----------
    trees : TreeSum
    history : list of dict
        For each tree that was tried: ``train_loss``, of the classifier; ``gain_over_base`` of
        held-out rows, ``gain_error`` its standard error; ``effective_share`` of the draws of the
        base.
    gain, error : float
        Nats by which held-out rows are more likely than under the base, and the standard error.
    interrupted : bool
        Whether Ctrl-C ended it.
    """

    trees: TreeSum
    history: list[dict[str, float]]
    gain: float
    error: float
    interrupted: bool = False


def boost(
    base: Distribution,
    rows: Sample,
    held_out: Sample,
    settings: BoostingSettings,
    generator: torch.Generator,
    progress: Callable[[Iterator[int]], Iterator[int]] = iter,
) -> Boosted:
    r"""Trees f for which :math:`q(x)\, e^{f(x)} / Z` is the density of the rows, q the base.

    In the first round, each tree lowers the logistic loss of a classifier of rows against draws of
    q, whose logit is the log density ratio [1]_. The number of trees is that for which held-out
    rows are most likely, with log Z by draws of q that no tree has seen: by those of training, log
    Z would be too low by nats. Every hundred trees a new round begins, whose draws are of the model
    so far, resampled of draws of q, so that what is still wrong with the model is most of what the
    classifier sees [2]_. Rounds end when one gains nothing, or when too few draws of the base are
    near the model.

    Parameters
    ----------
    base : Distribution
    rows : Sample
        Training rows, on the domain of the base.
    held_out : Sample
        Rows that choose the number of trees.
    settings : BoostingSettings
    generator : torch.Generator
    progress : callable
        Wraps the numbers of the trees as they are added.

    Returns
    -------
    Boosted
        No trees where they gain nothing.

    References
    ----------
    .. [1] Gutmann and Hyvärinen (2012), "Noise-contrastive estimation of unnormalized statistical
       models", JMLR 13, section 2.
    .. [2] Rhodes, Xu and Gutmann (2020), "Telescoping density-ratio estimation", NeurIPS, whose
       ratios are between neighbouring models as well.
    """
    return _Boosting(base, rows, held_out, settings, generator).run(progress)


class _Boosting:
    """The state of a fit: trees of the rounds so far, and what held-out rows say of them."""

    def __init__(
        self,
        base: Distribution,
        rows: Sample,
        held_out: Sample,
        settings: BoostingSettings,
        generator: torch.Generator,
    ):
        self.base, self.rows, self.held_out = base, rows, held_out
        self.settings, self.generator = settings, generator
        self.trees: list[Tree] = []
        self.bins: list[Bins] = []
        self.share = 1.0  # effective share of the draws of the base
        self.history: list[dict[str, float]] = []
        self.before = held_out.x.new_zeros(len(held_out.x), dtype=torch.float64)
        self.gain, self.error = 0.0, 0.0

    def run(self, progress: Callable[[Iterator[int]], Iterator[int]]) -> Boosted:
        numbers = progress(iter(range(self.settings.most_trees)))
        interrupted = False
        while True:
            before, now = self.gain, None
            try:
                now = self._next_round()
                now.add_trees(numbers, self.settings.learning_rate)
            except KeyboardInterrupt:
                if now is None and not self.trees:
                    raise
                interrupted = True
            if now is not None:
                self._keep(now)
            ended = interrupted or now is None or not now.has_ended
            if ended or self.gain - before < LEAST_GAIN or self.share < LEAST_SHARE:
                break
        return Boosted(self._sum(), self.history, self.gain, self.error, interrupted)

    def _sum(self) -> TreeSum:
        return TreeSum.of_trees(self.trees, self.bins, self.rows.x.dtype).to(self.rows.x.device)

    def _next_round(self) -> _Round:
        """A round whose draws are of the model so far."""
        n, model = len(self.rows.x), self._sum()
        most = _most_rows(NUMBERS_OF_DRAWS, self.rows.x)
        n_trained = min(max(DRAWS_PER_ROW * n, FEWEST_DRAWS), MOST_DRAWS, most)
        n_fresh = min(max(FRESH_PER_ROW * n, FEWEST_FRESH), MOST_FRESH, most)
        trained, fresh = self._draws(model, n_trained), self._draws(model, n_fresh)
        bins = Bins.of_samples(self.rows.x, trained)
        classes = _Classes(self.rows, trained, bins, self.settings, self.generator)
        return _Round(bins, classes, _Judges(self.held_out, fresh, bins, self.before))

    def _keep(self, one: _Round) -> None:
        """Add the trees of a round that held-out rows gain by."""
        gain, best = self.gain, one.course[one.n_best]
        for row, now in zip(one.history, one.course[1:], strict=False):
            row["epoch"] = len(self.history) + 1
            row["gain_over_base"] = gain + now.gain - one.course[0].gain
            row["effective_share"] *= self.share
            self.history.append(row)
        gained = _gain_by_halves(one.course)
        if one.n_best and gained > 0:
            self.trees += one.trees[: one.n_best]
            self.bins += [one.bins] * one.n_best
            self.gain += gained
            self.error, self.before = best.error, one.of_held_out
            self.share *= best.share
        elif not self.trees:
            self.gain, self.error = min(gained, 0.0), best.error

    def _draws(self, model: TreeSum, n: int) -> Tensor:
        """n draws of the model so far, resampled of those of the base by their weights."""
        if not model.n_trees:
            return self.base.sample(n, self.generator)
        most = max(n, min(MOST_PROPOSALS * n, _most_rows(NUMBERS_OF_PROPOSALS, self.rows.x)))
        proposals = min(max(n, int(n / 2 / self.share)), most)
        x = self.base.sample(proposals, self.generator)
        log_weight = -torch.cat([model(part) for part in x.split(BLOCK)]).double()
        weight = log_weight.softmax(0)
        self.share = _effective_share(weight)
        return x[torch.multinomial(weight, n, replacement=True, generator=self.generator)]


class _Round:
    """Trees that are added against some draws, and what held-out rows say of them."""

    def __init__(self, bins: Bins, classes: _Classes, judges: _Judges):
        self.bins, self.classes, self.judges = bins, classes, judges
        self.trees: list[Tree] = []
        self.course = [judges.gain()]  # without trees, and with each more
        self.history: list[dict[str, float]] = []
        self.n_best, self.of_held_out = 0, judges.of_held_out.clone()

    @property
    def has_ended(self) -> bool:
        """Whether held-out rows gain nothing by more trees, or there are enough for a round."""
        return len(self.trees) - self.n_best >= PATIENCE or len(self.trees) >= TREES_OF_ROUND

    def add_trees(self, numbers: Iterator[int], learning_rate: float) -> None:
        """Add trees while held-out rows gain; Ctrl-C leaves a round of those before it."""
        for _ in numbers:
            tree, loss = self.classes.add_tree()
            self.judges.add_tree(tree)
            now = self.judges.gain()
            row = {"epoch": 0, "train_loss": loss, "lr": learning_rate}
            row |= {"gain_over_base": now.gain, "gain_error": now.error}
            self.history.append(row | {"effective_share": now.share})
            self.trees.append(tree)
            self.course.append(now)
            if now.gain > self.course[self.n_best].gain:
                self.n_best, self.of_held_out = len(self.trees), self.judges.of_held_out.clone()
            if self.has_ended:
                break


def _effective_share(weight: Tensor) -> float:
    """Effective sample size of a draw, of weights (n,)."""
    return float(effective_count(weight, weight)) / len(weight)


class _Classes:
    """Rows and draws of the model, two classes, and the log density ratio of the trees so far.

    Each tree is grown on the next ones of each class, in an order that is random, and on the
    columns in which enough rows differ.
    """

    def __init__(
        self,
        rows: Sample,
        draws: Tensor,
        bins: Bins,
        settings: BoostingSettings,
        generator: torch.Generator,
    ):
        self.settings = settings
        n, m, device = len(rows.x), len(draws), rows.x.device
        order = torch.randperm(n, generator=generator, device=device)
        self.codes = bins.codes(torch.cat([rows.x[order], draws]))
        self.columns = divided_columns(self.codes[:, :n], min(FEWEST_APART, n // 2))
        self.by_row = self.codes[self.columns].t().contiguous()
        weight = rows.weight.double()[order]
        self.weight = torch.cat([weight, weight.new_full((m,), float(weight.sum()) / m)])
        self.log_ratio = torch.zeros(n + m, dtype=torch.float64, device=device)
        self.n, self.n_trees = n, 0

    def add_tree(self) -> tuple[Tree, float]:
        """The tree that lowers the loss most, and the loss after it, in nats a row."""
        rows, draws = self._next()
        weight, log_ratio = (self._parts(one, rows, draws) for one in (self.weight, self.log_ratio))
        # The draws of a tree weigh as much as its rows.
        weight = weight[0], weight[1] * (weight[0].sum() / weight[1].sum())
        wrong = torch.sigmoid(-log_ratio[0]), torch.sigmoid(log_ratio[1])
        grad = torch.cat([-weight[0] * wrong[0], weight[1] * wrong[1]])
        wrong_of_both, weight_of_both = torch.cat(wrong), torch.cat(weight)
        curvature = weight_of_both * wrong_of_both * (1 - wrong_of_both)
        codes = torch.cat(self._parts(self.by_row, rows, draws))
        tree = grow_tree(codes, grad, curvature, self.settings.growth)
        column = self.columns.cpu().numpy()[tree.column]
        tree = tree._replace(column=column, value=tree.value * self.settings.learning_rate)
        self.log_ratio += tree.values(self.codes)
        self.n_trees += 1
        of_rows, of_draws = self._parts(self.log_ratio, rows, draws)
        loss = torch.nn.functional.softplus(torch.cat([-of_rows, of_draws]))
        return tree, float(weighted_mean(loss, weight_of_both))

    def _parts(self, values: Tensor, rows: slice, draws: slice) -> tuple[Tensor, Tensor]:
        return values[: self.n][rows], values[self.n :][draws]

    def _next(self) -> tuple[slice, slice]:
        """Which rows, and which draws, the next tree is grown on."""
        n, m = self.n, len(self.weight) - self.n
        most = min(MOST_ROWS, _most_rows(NUMBERS_OF_TREE, self.by_row))
        n_rows = min(n, most // 2)
        n_draws = min(m, most - n_rows)
        return _turn(self.n_trees, n_rows, n), _turn(self.n_trees, n_draws, m)


def _most_rows(numbers: int, like: Tensor) -> int:
    """Rows of so many numbers, at least some."""
    return max(FEWEST_OF_WIDE, numbers // max(1, like.shape[1]))


def _turn(k: int, size: int, n: int) -> slice:
    """The k-th of the slices of a size that n numbers are divided into, over and over."""
    first = k * size % n
    first = min(first, n - size)
    return slice(first, first + size)


class _Gain(NamedTuple):
    """Nats of held-out rows over the base, also by halves of these rows, with what is known.

    `error` is the standard error, `share` the effective share of the draws.
    """

    gain: float
    error: float
    share: float
    halves: tuple[float, float]


def _gain_by_halves(course: list[_Gain]) -> float:
    """Nats gained by the number of trees that one half of the rows chooses, by the other half.

    That of the best of many numbers, by the rows that choose it, is positive where nothing is
    gained.
    """
    halves = np.array([one.halves for one in course])
    first, second = halves.argmax(0)
    gains = halves - halves[0]
    return float(gains[first, 1] + gains[second, 0]) / 2


class _Judges:
    """Held-out rows and draws that no tree has seen, and the sums of trees at them."""

    def __init__(self, held_out: Sample, fresh: Tensor, bins: Bins, before: Tensor):
        self.weight = held_out.weight.double() / held_out.weight.double().sum()
        self.codes = bins.codes(torch.cat([held_out.x, fresh]))
        zeros = before.new_zeros(len(fresh))
        self.values, self.n = torch.cat([before, zeros]), len(before)

    @property
    def of_held_out(self) -> Tensor:
        """Log density ratio of held-out rows to the base, up to log Z."""
        return self.values[: self.n]

    def add_tree(self, tree: Tree) -> None:
        self.values += tree.values(self.codes)

    def gain(self) -> _Gain:
        ratio, draws = self.of_held_out, self.values[self.n :]
        log_z = float(draws.logsumexp(0)) - math.log(len(draws))
        mean = float(weighted_mean(ratio, self.weight))
        spread = float((self.weight * (ratio - mean)).square().sum())
        first, second = (float(weighted_mean(ratio[k::2], self.weight[k::2])) for k in (0, 1))
        halves = first - log_z, second - log_z
        return _Gain(mean - log_z, math.sqrt(spread), _effective_share(draws.softmax(0)), halves)
