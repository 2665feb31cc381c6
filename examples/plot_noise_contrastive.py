"""
A density from a classifier
===========================

``NCEDensity`` tells rows from draws of a known distribution. What the classifier has learned is the
ratio of the two densities, so the density of the rows is known as well, with its log Z.
"""

# %%
# Noise and ratio, searched over
# ------------------------------
# Two parameters matter: which noise, and how many draws of it there are for each row. ``score`` is
# the mean log-likelihood of held-out rows by the largest credible log Z.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import make_moons
from sklearn.model_selection import GridSearchCV

from skebm import NCEDensity
from skebm.energies import MLP
from skebm.inspection import EnergyDisplay, TrainingDisplay

X, _ = make_moons(2500, noise=0.1, random_state=0)
density = NCEDensity(MLP((64, 64)), n_iter=20, random_state=0)
grid = {"noise": ["gaussian", "mixture", "kernel"], "noise_ratio": [1, 4]}
search = GridSearchCV(density, grid, cv=2).fit(X[:2000])
table = pd.DataFrame(search.cv_results_).pivot(
    index="param_noise", columns="param_noise_ratio", values="mean_test_score"
)
print("held-out log-likelihood by noise and draws for each row\n", table.round(3))

# %%
# Training is watched by rows that the network does not see: how many are told from noise (half of
# them, where the noise is as good as the model), and nats a row above the noise.

gaussian = NCEDensity(noise="gaussian", n_iter=20, random_state=0).fit(X[:2000])
TrainingDisplay.from_estimator(gaussian, names=["accuracy", "gain_over_base"]).plot()
plt.show()

fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
EnergyDisplay.from_estimator(gaussian, X, n_samples=200, random_state=0).plot(ax)
plt.show()

# %%
# Two numbers for log Z
# ---------------------
# The classifier learns log Z as a parameter. Importance sampling from the noise estimates it anew,
# with an error, and that is what likelihoods use.

for name, model in {"normal noise": gaussian, "best": search.best_estimator_}.items():
    print(
        f"{name}: learned {model.log_partition_learned_:.3f}, estimated "
        f"{model.log_partition_:.3f} +- {model.log_partition_std_:.3f}, "
        f"held-out log-likelihood {model.score(X[2000:]):.3f}"
    )

# %%
# Bits
# ----
# The noise is a Chow-Liu tree, and log Z exact: six bits can be enumerated.

rng = np.random.default_rng(0)
parity = rng.integers(0, 2, (2000, 5))
bits = np.c_[parity, parity.sum(1) % 2 ^ (rng.random(2000) < 0.1)].astype(float)
binary = NCEDensity(random_state=0).fit(bits[:1500])
tree = NCEDensity(n_iter=0, random_state=0).fit(bits[:1500])  # the noise itself
print(
    f"parity of five bits: tree {tree.score(bits[1500:]):.3f}, with the network on top "
    f"{binary.score(bits[1500:]):.3f} ({binary.log_partition_method_})"
)
