"""
RBMs with Chow-Liu and block-tree bases: digits coded in bits
=============================================================

Columns that encode one quantity, such as one-hot and thermometer codes,
have strong dependences that would otherwise take many hidden units. An RBM
with a *base* corrects a tractable distribution q that already models them:

.. math:: E(x) = -\\log q(x) + F(x),

where q is fitted first and F is the free energy of an RBM. If q is a tree,
p(x given h) is a tree too, so block Gibbs sampling stays exact, and
annealed importance sampling of log Z starts from q.
"""

# %%
# Data
# ----
# Each of the 36 inner pixels of a digit is coded by three bits: whether it
# is at least 4, 8, 12 of 16. Four of the eight patterns of three such bits
# are impossible, which independent columns cannot represent.

# sphinx_gallery_thumbnail_number = 1

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

grey = load_digits().images[:, 1:7, 1:7].reshape(-1, 36)
bits = np.stack([grey >= 4, grey >= 8, grey >= 12], axis=2)
bits = bits.reshape(len(grey), -1)
train, test = train_test_split(
    bits.astype(float), train_size=800, random_state=0
)
print(f"{len(train)} rows to train on, {len(test)} to test on")
print(f"{train.shape[1]} bits")

# %%
# Three bases, with and without hidden units
# ------------------------------------------
# With the base ``"independent"`` the model is a plain RBM; ``"chow-liu"``
# is the maximum-likelihood tree of bits and ``"block-tree"`` a tree of
# blocks of up to three bits. With ``n_iter=0`` the model is its base.
# Scores are mean log-likelihoods in nats with the largest of several
# estimates of log Z: those of forward annealing and of reverse annealing
# from three starts.

from skebm import RBMEstimator
from skebm.objectives import Penalty
from skebm.partition import AISBracket
from skebm.training import SGD

bracket = AISBracket(n_chains=50, n_betas=100, n_steps=50)
bases = ("independent", "chow-liu", "block-tree")
scores = {}
print(f"{'base':12} passes   test, nats   estimates of log Z differ by")
for base in bases:
    for n_iter in (0, 30):
        model = RBMEstimator(
            24,
            base=base,
            learning_rate=0.1,
            n_iter=n_iter,
            optimizer=SGD(schedule="linear"),
            penalty=Penalty(l2=0.005),
            partition=bracket,
            random_state=0,
        ).fit(train)
        scores[base, n_iter] = model.score(test)
        values = [value for value, _ in model.log_partition_parts_.values()]
        print(
            f"{base:12} {n_iter:6} {scores[base, n_iter]:12.2f}"
            f" {max(values) - min(values):18.2f}"
        )

# %%
# The trees alone are better than an RBM of 24 hidden units with independent
# columns as base, and hidden units improve them further.

import matplotlib.pyplot as plt

alone = [scores[base, 0] for base in bases]
with_units = [scores[base, 30] for base in bases]
fig, ax = plt.subplots(figsize=(7, 2.4))
ax.hlines(bases, alone, with_units, color="0.8", linewidth=3, zorder=0)
ax.scatter(alone, bases, color="C1", marker="s", label="base alone")
ax.scatter(with_units, bases, color="C0", label="with 24 hidden units")
for name, values in (("right", alone), ("left", with_units)):
    for base, value in zip(bases, values, strict=True):
        label = f"  {value:.1f}  "
        ax.text(value, base, label, ha=name, va="center", fontsize="small")
ax.set_xlabel("mean log-likelihood of test rows, nats (higher is better)")
ax.margins(x=0.12, y=0.25)
ax.invert_yaxis()
ax.legend(loc="lower left")
ax.grid(axis="x")
plt.show()
