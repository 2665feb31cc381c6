"""Categories as numbers: a column for each level, or the rarity of the level."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

# Value of a column for what did not occur in fit; the column is 0 in all rows of fit, and densities
# take one that does not vary to have a standard deviation of 1.
UNSEEN = 10.0
# Fraction of new rows with unseen levels, as estimated, below which unseen levels are as far away
# as those of a column of few levels.
RARELY_UNSEEN = 0.01
# How many times the frequency, and the rows, of a group of levels those of the next rarer one are.
GROWTH = 2


class LevelCodes(NamedTuple):
    """Columns for the levels of a categorical column.

    Attributes
    ----------
    names : list of str
        Of the columns, that of unseen levels last.
    codes : ndarray of shape (n_levels + 1, n_columns)
        Row of each level; the last one is that of unseen levels, code -1.
    """

    names: list[str]
    codes: np.ndarray

    def rows(self, codes: np.ndarray) -> np.ndarray:
        """Rows of the levels, nan where missing."""
        missing = np.isnan(codes)
        found = self.codes[np.where(missing, 0, codes).astype(int)]
        found[missing, :-1], found[missing, -1] = np.nan, 0.0
        return found


def one_hot(name: str, levels: tuple[Any, ...], counts: np.ndarray) -> LevelCodes:
    """A column for each level that occurs, the commonest first; declared others are unseen ones."""
    order = _by_count(counts)
    n = len(order)
    codes = np.zeros((len(levels) + 1, n + 1))
    codes[:, n] = UNSEEN
    codes[order, n] = 0.0
    codes[order, np.arange(n)] = 1.0
    names = [f"{name}_{levels[code]}" for code in order]
    return LevelCodes([*names, f"{name}_unseen"], codes)


def by_frequency(
    name: str, levels: tuple[Any, ...], counts: np.ndarray, most: int
) -> LevelCodes | None:
    """The rarity of a level, and columns for the most frequent levels.

    Levels have columns of their own as long as all others together are rarer than each of them.

    The expected fraction of new rows with unseen levels is that of levels that occur once (Good).
    Unseen levels count as half an occurrence; if the fraction is below 0.01, they also are ten
    standard deviations from all others.

    None where neither says anything, as for texts that are nearly all distinct.

    References
    ----------
    Good (1953), "The population frequencies of species and the estimation of population
    parameters", Biometrika 40(3/4).
    """
    order = _by_count(counts)
    own = order[: n_own_columns(counts[order], most)]
    rarity = rarity_of_levels(counts)
    rarely = float((counts == 1).sum()) < RARELY_UNSEEN * counts.sum()
    spread = float(np.sqrt(np.average(rarity[:-1] ** 2, weights=counts)))
    if not spread and not len(own) and not rarely:
        return None
    columns, names = [], []
    if spread:
        columns.append(rarity / spread)
        names.append(f"{name}_rarity")
    for code in own:
        columns.append((np.arange(len(levels) + 1) == code).astype(float))
        names.append(f"{name}_{levels[code]}")
    unseen = np.append(np.where(counts > 0, 0.0, UNSEEN), UNSEEN) * rarely
    return LevelCodes([*names, f"{name}_unseen"], np.column_stack([*columns, unseen]))


def _by_count(counts: np.ndarray) -> np.ndarray:
    """Codes of the levels that occur, the commonest first."""
    order = np.argsort(-counts, kind="stable")
    return order[counts[order] > 0]


def n_own_columns(counts: np.ndarray, most: int) -> int:
    """How many of the levels, the commonest first, are each commoner than all later ones together.

    The later ones are one point beside the columns of the others: it must not be the usual one.
    """
    rest = counts.sum() - np.cumsum(counts)
    fits = np.flatnonzero(rest[:most] <= counts[:most])
    return int(fits[-1]) + 1 if len(fits) else 0


def rarity_of_levels(counts: np.ndarray) -> np.ndarray:
    r"""How much rarer a level is than frequent ones, in nats, with a sign; (n_levels + 1,).

    A density of the log frequency itself would take the most usual frequency to be the most normal
    one. Where most levels occur once, a level that fills a tenth of the rows would be an anomaly;
    and of four frequencies the mean is more normal than the highest. Here most rows have the value
    0, and rarer levels lie on both sides of it, the rarer the farther and the fewer
    (:func:`grouped_log_frequency`). Every density that falls from the centre of its rows then finds
    rarer levels less likely. Which side a level is on says nothing; it keeps the mean at 0.

    The last entry is that of unseen levels, which count as half an occurrence.
    """
    logs = grouped_log_frequency(counts)
    found = np.zeros(len(counts) + 1)
    mean = 0.0
    for code in _by_count(counts):
        side = -1.0 if mean > 0 else 1.0
        found[code] = side * (logs.max() - logs[code])
        mean += counts[code] * found[code]
    once = logs[counts == 1].max(initial=0.0)
    found[np.append(counts == 0, True)] = logs.max() - once + np.log(2)
    return found


def grouped_log_frequency(counts: np.ndarray) -> np.ndarray:
    """Log of the mean number of rows of a level's group, in nats; 0 for levels that do not occur.

    Groups of frequencies, the rarest first, begin a factor of two apart or more, as those of levels
    with 40 and 50 rows hardly differ, and each has at least twice the rows of the group before it.
    """
    occurs = counts > 0
    sizes, member = np.unique(counts[occurs], return_inverse=True)
    rows = np.bincount(member, weights=counts[occurs])
    starts, last, held = [0], 0.0, 0.0
    for k, size in enumerate(sizes):
        if size >= GROWTH * sizes[starts[-1]] and held >= GROWTH * last:
            starts.append(k)
            last, held = held, 0.0
        held += rows[k]
    if len(starts) > 1 and held < GROWTH * last:  # the most frequent levels are one group
        starts.pop()
    group = np.searchsorted(starts, np.arange(len(sizes)), side="right") - 1
    total = np.bincount(group, weights=rows * sizes) / np.bincount(group, weights=rows)
    logs = np.zeros(len(counts))
    logs[occurs] = np.log(total)[group][member]
    return logs
