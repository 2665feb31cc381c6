"""Small tables to fit: bits, real columns and one-hot columns with something to learn in them."""

import numpy as np


def binary_rows(n=60, d=6, seed=0, noise=0.15):
    """Rows whose columns copy two hidden switches with noise."""
    rng = np.random.default_rng(seed)
    switches = rng.integers(0, 2, (n, 2))
    rows = switches[:, np.arange(d) % 2]
    return np.where(rng.random((n, d)) < noise, 1 - rows, rows).astype(np.float64)


def real_rows(n=60, d=6, seed=0):
    """Rows of two clusters, correlated columns; multiples of 1/128, which float16 holds."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(n, 1))
    rows = 0.7 * common + 0.5 * rng.normal(size=(n, d)) + rng.choice([-1.0, 1.0], (n, 1))
    return np.round(128 * rows) / 128


def correlated_rows(n=200, seed=0):
    """Two correlated columns and an independent one."""
    x = np.random.default_rng(seed).normal(size=(n, 3))
    return x @ np.array([[1.0, 0.8, 0], [0, 0.6, 0], [0, 0, 2.0]]) + 1


def one_hot_rows(n=60, d=6, seed=0):
    """d / 3 columns of three levels that mostly copy a hidden one, as indicators."""
    rng = np.random.default_rng(seed)
    levels = np.repeat(rng.integers(0, 3, (n, 1)), d // 3, axis=1)
    other = rng.integers(0, 3, levels.shape)
    return np.eye(3)[np.where(rng.random(levels.shape) < 0.3, other, levels)].reshape(n, -1)
