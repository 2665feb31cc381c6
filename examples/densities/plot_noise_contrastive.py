"""
Noise contrastive estimation: two moons and parity of bits
==========================================================

``NCEDensity`` trains a classifier to discriminate data from draws of a
known noise distribution. The classifier learns the ratio of the two
densities, and thereby the density of the data and its log Z.
"""

# sphinx_gallery_thumbnail_number = 2

# %%
# Grid search over noise and ratio
# --------------------------------
# Two parameters matter most: the noise distribution, and the number of
# draws per row. ``score`` is the mean log-likelihood of held-out rows with
# the largest credible log Z.

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
    index="param_noise",
    columns="param_noise_ratio",
    values="mean_test_score",
)
print(
    "held-out log-likelihood by noise and draws per row\n", table.round(3)
)

# %%
# Two quantities are monitored on validation rows during training: the
# accuracy of the classifier (0.5 if the noise is as good as the model), and
# the gain in log-likelihood over the noise, in nats per row.

gaussian = NCEDensity(noise="gaussian", n_iter=20, random_state=0).fit(
    X[:2000]
)
TrainingDisplay.from_estimator(
    gaussian, names=["accuracy", "gain_over_base"]
).plot()
plt.show()

fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
EnergyDisplay.from_estimator(
    gaussian, X, n_samples=200, random_state=0
).plot(ax)
plt.show()

# %%
# Two estimates of log Z
# ----------------------
# The classifier learns log Z as a parameter. Importance sampling from the
# noise gives a second estimate with a standard error, which is the one used
# in likelihoods.

for name, model in {
    "Gaussian noise": gaussian,
    "best": search.best_estimator_,
}.items():
    print(
        f"{name}: learned {model.log_partition_learned_:.3f}, estimated "
        f"{model.log_partition_:.3f} +- {model.log_partition_std_:.3f}, "
        f"held-out log-likelihood {model.score(X[2000:]):.3f}"
    )

# %%
# Binary rows
# -----------
# The noise is a Chow-Liu tree, and log Z is exact, as the states of six
# bits can be enumerated.

rng = np.random.default_rng(0)
parity = rng.integers(0, 2, (2000, 5))
bits = np.c_[parity, parity.sum(1) % 2 ^ (rng.random(2000) < 0.1)].astype(
    float
)
binary = NCEDensity(random_state=0).fit(bits[:1500])
tree = NCEDensity(n_iter=0, random_state=0).fit(
    bits[:1500]
)  # the noise itself
print(
    f"parity of five bits: tree {tree.score(bits[1500:]):.3f}, corrected by the network "
    f"{binary.score(bits[1500:]):.3f} ({binary.log_partition_method_})"
)
