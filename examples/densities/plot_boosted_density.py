"""
Boosted trees: a density with steps
===================================

``BoostedDensity`` corrects a base by boosted trees, which are grown one by
one against draws of the model so far. Trees follow the steps and corners of
tables, where smooth functions round them off.
"""

# %%
# A level that depends on a range
# -------------------------------
# The second column has a level for each range of the first. The base is one
# Gaussian, which knows nothing of it.

# sphinx_gallery_thumbnail_number = 1

import matplotlib.pyplot as plt
import numpy as np

from skebm import BoostedDensity

random = np.random.default_rng(0)
x = random.random(4000) * 4
level = np.array([0.0, 3.0, 1.0, 2.0])[x.astype(int)]
table = np.c_[x, level + 0.2 * random.normal(size=4000)]
train, test = table[:2000], table[2000:]
truth = -np.log(4) - np.log(0.2 * np.sqrt(2 * np.pi * np.e))

model = BoostedDensity("gaussian", learning_rate=0.2, random_state=0).fit(
    train
)
base = BoostedDensity("gaussian", n_iter=0, random_state=0).fit(train)
print(f"base  {base.score(test):.2f} nats")
print(f"trees {model.score(test):.2f} nats, of {model.n_trees_} trees")
print(f"truth {truth:.2f} nats")

# %%
# Density and samples
# -------------------

sides = np.linspace(-0.5, 4.5, 101), np.linspace(-1, 4, 101)
grid = np.stack(np.meshgrid(*sides), -1).reshape(-1, 2)
panels = {
    "base, 400 draws": (base, base.sample(400, random_state=0)),
    "400 rows": (None, test[:400]),
    "trees, 400 samples": (model, model.sample(400, random_state=0)),
}
fig, axes = plt.subplots(1, 3, figsize=(7.5, 2.8), sharey=True)
for ax, (title, (density, rows)) in zip(axes, panels.items(), strict=True):
    if density is not None:
        p = np.exp(density.score_samples(grid)).reshape(101, 101)
        ax.pcolormesh(*sides, p, vmin=0, vmax=0.5, rasterized=True)
    ax.plot(*rows.T, ".", color="C1", markersize=2)
    ax.set(xlim=(-0.5, 4.5), ylim=(-1, 4), title=title)
    ax.set(xticks=[], yticks=[], frame_on=False)
plt.show()

# %%
# How many trees
# --------------
# After each tree, rows that no tree has seen tell what is gained; the model
# has as many trees as gain most. A second round starts against draws of the
# model.

gain = [row["gain_over_base"] for row in model.history_]
fig, ax = plt.subplots(figsize=(5, 2.8))
ax.plot(np.arange(1, len(gain) + 1), gain)
most = truth - base.score(test)
ax.axhline(most, color="0.5", linestyle=":", label="of the true density")
ax.set(xlabel="trees", ylabel="gain of held-out rows, nats")
ax.legend(loc="lower right")
plt.show()
