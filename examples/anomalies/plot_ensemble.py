"""
An ensemble of detectors of any kind: three kinds of anomalies
==============================================================

``OutlierEnsemble`` merges the ranks of a mixture, of neighbours and of a
forest, whose scores have no common unit. Its p-values are as exact as
those of one detector, whatever the members have to do with each other.

Data: two simulated clusters of normal rows, and anomalies that are far
from all rows, between the clusters, or near one of them at a wrong angle.
"""

# %%
# Rows
# ----

# sphinx_gallery_thumbnail_number = 1

import numpy as np
from sklearn.ensemble import IsolationForest
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import LocalOutlierFactor

from skebm import OutlierEnsemble
from skebm.estimators import merge_p_values


def normal(n, seed):
    """Two clusters, one of them narrow and tilted."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 2))
    tilted = x @ np.array([[1.5, 1.4], [0.0, 0.15]]) + [4, 0]
    return np.where(random.random((n, 1)) < 0.5, 0.6 * x, tilted)


random = np.random.default_rng(0)
anomalies = {
    "far": random.normal(size=(100, 2)) * 0.5 + [-4, 5],
    "between": random.normal(size=(100, 2)) * 0.2 + [2.2, -1],
    "tilted": random.normal(size=(100, 1)) * [1.0, -1.0] + [4, 0],
}
train, new = normal(1000, seed=1), normal(2000, seed=2)

# %%
# Three members, one p-value
# --------------------------
# All are fitted to the same rows, and rank the same held-out ones.

members = [
    ("mixture", GaussianMixture(2, random_state=0)),
    ("neighbours", LocalOutlierFactor(novelty=True)),
    ("forest", IsolationForest()),
]
ensemble = OutlierEnsemble(members, level=0.05, random_state=0)
ensemble.fit(train)

print(
    f"{'flagged':10}" + "".join(f"{n:>12}" for n, _ in members) + "    all"
)
for name, rows in {"normal": new, **anomalies}.items():
    alone = (ensemble.member_p_values(rows) <= 0.05).mean(0)
    together = (ensemble.predict(rows) == -1).mean()
    print(
        f"{name:10}"
        + "".join(f"{rate:12.1%}" for rate in alone)
        + f"{together:7.1%}"
    )

# %%
# What exactness is worth
# -----------------------
# Twice the mean of p-values that depend on each other in an unknown manner
# is a p-value, e times the geometric mean, and so on. The factor costs
# anomalies; ranks among the same held-out rows need none.

p = ensemble.member_p_values(anomalies["tilted"])
exact = (ensemble.p_values(anomalies["tilted"]) <= 0.05).mean()
print(f"exact                   {exact:.0%}")
for method in ("mean", "geometric", "harmonic", "minimum"):
    found = (merge_p_values(p, method) <= 0.05).mean()
    print(f"factor, {method:15} {found:.0%}")

# %%
# Where rows are abnormal
# -----------------------

import matplotlib.pyplot as plt

x, y = np.meshgrid(np.linspace(-6, 9, 120), np.linspace(-5, 7, 100))
grid = np.column_stack([x.ravel(), y.ravel()])
values = np.column_stack(
    [ensemble.member_p_values(grid), ensemble.p_values(grid)]
)
figure, axes = plt.subplots(2, 2, figsize=(8, 6), sharex=True, sharey=True)
titles = [name for name, _ in members] + ["ensemble"]
for ax, value, title in zip(axes.flat, values.T, titles, strict=True):
    ax.contourf(x, y, value.reshape(x.shape) <= 0.05, [0.5, 1], alpha=0.2)
    ax.scatter(*train.T, s=2, color="C0")
    for k, rows in enumerate(anomalies.values()):
        ax.scatter(*rows.T, s=4, color=f"C{k + 1}")
    ax.set(title=title)
plt.show()
