"""Tables that break estimators: constant, repeated, few, wide, heavy-tailed, far, rare, discrete.

Most have two columns, so that the integral of a density can be checked.
"""

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

N_TRAIN, N_HELD_OUT = 200, 100


class Split(NamedTuple):
    """A table: rows for `fit`, classes of these, rows that training does not see."""

    X: Any
    y: np.ndarray
    held_out: Any


def constant(random, n):
    return np.column_stack([random.standard_normal(n), np.full(n, 3.0)])


def duplicates(random, n):
    rows = np.random.default_rng(random.integers(2**31)).standard_normal((7, 2))
    return rows[random.integers(0, 7, n)]


def one_distinct(random, n):
    return np.tile([[0.5, -2.0]], (n, 1))


def two_rows(random, n):
    return np.array([[0.0, 1.0], [1.5, -1.0]])


def one_column(random, n):
    return random.standard_normal((n, 1)) + random.choice([-2.0, 2.0], (n, 1))


def wide(random, n):
    """More columns than rows."""
    return random.standard_normal((20, 40))


def cauchy(random, n):
    return random.standard_cauchy((n, 2))


def huge(random, n):
    return 1e12 * correlated(random, n)


def tiny(random, n):
    return 1e-12 * correlated(random, n)


def timestamps(random, n):
    rows = correlated(random, n) * [1e4, 1.0] + [1.7e9, 0.0]
    return rows.astype(np.float32)


def collinear(random, n):
    rows = random.standard_normal((n, 2))
    return np.column_stack([rows, rows @ [1.0, -2.0]])


def narrow(random, n):
    """Clusters of a thousandth of their distance."""
    return random.choice([-10.0, 0.0, 10.0], (n, 1)) + 0.01 * random.standard_normal((n, 2))


def ring(random, n):
    angle = random.uniform(0, 2 * np.pi, n)
    return np.column_stack([np.cos(angle), np.sin(angle)]) + 0.02 * random.standard_normal((n, 2))


def grid(random, n):
    return random.integers(0, 10, (n, 2)) / 10


def integers(random, n):
    return random.integers(0, 4, (n, 3))


def outliers(random, n):
    """One row in a hundred is a million standard deviations away."""
    return random.standard_normal((n, 2)) + 1e6 * (random.random((n, 1)) < 0.01)


def box(random, n):
    return random.uniform(-1, 1, (n, 2))


def spikes(random, n):
    return np.where(random.random((n, 4)) < 0.03, random.exponential(10.0, (n, 4)), 0.0)


def sparse_bits(random, n):
    return sp.csr_matrix((random.random((n, 8)) < 0.1).astype(float))


def constant_bits(random, n):
    return (random.random((n, 8)) < [0, 1, 0.005, 0.995, 0.01, 0.99, 0.5, 0.02]).astype(float)


def log_normal(random, n):
    """Eight orders of magnitude."""
    return np.exp(3.5 * random.standard_normal((n, 2)))


def mixed_scales(random, n):
    return correlated(random, n) * [1e-6, 1e6]


def correlated(random, n):
    return random.standard_normal((n, 2)) @ np.array([[1.0, 0.8], [0.0, 0.6]])


TABLES = {
    make.__name__: make
    for make in (
        constant,
        duplicates,
        one_distinct,
        two_rows,
        one_column,
        wide,
        cauchy,
        huge,
        tiny,
        timestamps,
        collinear,
        narrow,
        ring,
        grid,
        integers,
        outliers,
        box,
        spikes,
        sparse_bits,
        constant_bits,
        log_normal,
        mixed_scales,
    )
}


def split(name, seed=0, n_train=N_TRAIN):
    """A table of that name; with two or twenty rows in all, none is kept from training."""
    rows = TABLES[name](np.random.default_rng(seed), n_train + N_HELD_OUT)
    X, held_out = (rows[:n_train], rows[n_train:]) if rows.shape[0] > n_train else (rows, rows)
    return Split(X, classes(X), held_out)


def classes(X):
    """Whether the first column is above its median; of constant columns, every other row."""
    column = np.asarray(X[:, [0]].todense() if sp.issparse(X) else X[:, [0]]).ravel()
    y = (column > np.median(column)).astype(int)
    return y if y.any() else np.arange(len(y)) % 2
