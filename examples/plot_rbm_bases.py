"""
A tree underneath: bases of an RBM
==================================

Columns that code one quantity, such as one-hot and thermometer codes, depend on each other so
strictly that hidden units are used up on restating the code. An RBM on a *base* starts from a
distribution that knows it already:

.. math:: E(x) = -\\log q(x) + F(x),

with q fitted first and F the free energy of a usual RBM. Where q is a tree, p(x given h) is a tree
as well, so sampling stays exact, and annealing for log Z starts from q itself.
"""

# %%
# Data
# ----
# Each pixel of a digit becomes three bits: is it at least 4, 8, 12 of 16? Five of the eight
# patterns of such three bits are impossible, which an independent base does not know.

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

grey = load_digits().data
bits = np.stack([grey >= 4, grey >= 8, grey >= 12], axis=2).reshape(len(grey), -1)
train, test = train_test_split(bits.astype(float), test_size=0.3, random_state=0)
print(f"{len(train)} rows to train on, {len(test)} to test on, {train.shape[1]} bits")

# %%
# Three bases, with and without hidden units
# ------------------------------------------
# ``"independent"`` is the usual machine, ``"chow-liu"`` the most likely tree of pairs of bits,
# ``"block-tree"`` a tree whose nodes are up to three bits that belong together. ``n_iter=0`` leaves
# the base alone. Scores are mean log-likelihoods in nats, by the largest of several estimates of
# log Z, a short forward annealing and reverse ones from three starts.

import time

from skebm import RBMEstimator
from skebm.objectives import Penalty
from skebm.partition import AISBracket

bracket = AISBracket(n_chains=50, n_betas=500, n_steps=100)
rows = []
for base in ("independent", "chow-liu", "block-tree"):
    for n_iter in (0, 40):
        started = time.perf_counter()
        model = RBMEstimator(
            32,
            base=base,
            n_iter=n_iter,
            penalty=Penalty(l2=0.005),
            partition=bracket,
            random_state=0,
        ).fit(train)
        score = model.score(test)
        found = [value for value, _ in model.log_partition_parts_.values()]
        rows.append((base, n_iter, score, max(found) - min(found)))
        what = "base alone" if n_iter == 0 else "with 32 hidden units"
        print(
            f"{base:12} {what:21} test {score:7.2f} nats, estimates of log Z within "
            f"{rows[-1][3]:.2f}, {time.perf_counter() - started:.1f} s"
        )

# %%
# The tree alone beats what 32 hidden units make of independent columns, and hidden units on top of
# it find what no tree says.

import matplotlib.pyplot as plt

fig, ax = plt.subplots(figsize=(7, 3.2))
names = ["independent", "chow-liu", "block-tree"]
for offset, n_iter, label in ((-0.2, 0, "base alone"), (0.2, 40, "with 32 hidden units")):
    scores = [score for base, passes, score, *_ in rows if passes == n_iter]
    bars = ax.barh(np.arange(3) + offset, scores, height=0.38, label=label)
    ax.bar_label(bars, fmt="%.1f", padding=3)
ax.set_yticks(range(3), names)
ax.set_xlabel("mean log-likelihood of test rows, nats (higher is better)")
ax.set_xlim(-85, 0)
ax.invert_yaxis()
ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
fig.tight_layout()
plt.show()
