"""
Contrastive divergence: two moons and digits
============================================

``ContrastiveDivergenceDensity`` trains a network by stochastic gradient
ascent on the likelihood: each step lowers the energy at the data and raises
it at samples from Markov chains of the model. The sampler is a parameter of
the estimator, and its settings can be searched over like any others.
"""

# sphinx_gallery_thumbnail_number = 2

# %%
# Grid search over the sampler
# ----------------------------
# ``score`` is the mean log-likelihood of held-out rows with the largest
# credible log Z, so that settings with poor samples are not preferred.

import matplotlib.pyplot as plt
import pandas as pd
from sklearn.datasets import load_digits, make_moons
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skebm import ContrastiveDivergenceDensity
from skebm.energies import MLP, Conv
from skebm.inspection import EnergyDisplay, TrainingDisplay
from skebm.samplers import Langevin

X, _ = make_moons(600, noise=0.1, random_state=0)
density = ContrastiveDivergenceDensity(
    MLP((64, 64)),
    sampler=Langevin(),
    base="gaussian",
    chains="data",
    n_iter=60,
    random_state=0,
)
pipeline = make_pipeline(StandardScaler(), density)
name = "contrastivedivergencedensity__sampler__"
grid = {
    f"{name}step_size": [0.003, 0.03, 0.3],
    f"{name.replace('sampler', 'chains')}n_steps": [2, 10],
}
search = GridSearchCV(pipeline, grid, cv=2).fit(X)

table = pd.DataFrame(search.cv_results_).pivot(
    index=f"param_{name}step_size",
    columns=f"param_{name.replace('sampler', 'chains')}n_steps",
    values="mean_test_score",
)
print(
    "held-out log-likelihood by step size and number of steps\n",
    table.round(3),
)

# %%
# The first figure shows the training history. The energy gap, mean E(data)
# - mean E(chains), stays near zero. The gain over the base, in nats per
# row, is measured on validation rows.

best = search.best_estimator_[-1]
TrainingDisplay.from_estimator(
    best, names=["energy_gap", "gain_over_base", "lr"]
).plot()
plt.show()

fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
Z = search.best_estimator_[:-1].transform(X)
EnergyDisplay.from_estimator(best, Z, n_samples=200, random_state=0).plot(
    ax
)
plt.show()

# %%
# Divergence
# ----------
# With Langevin steps ten times too large and a high learning rate, chains
# diverge. Training is then rolled back to an earlier state, and continues
# with half the step size and half the learning rate, with a warning.

diverged = ContrastiveDivergenceDensity(
    sampler=Langevin(0.3), learning_rate=0.05, n_iter=40, random_state=0
).fit(X[:400])
stable = ContrastiveDivergenceDensity(n_iter=40, random_state=0).fit(
    X[:400]
)
for name, model in {
    "steps too large": diverged,
    "defaults": stable,
}.items():
    print(
        f"{name}: rolled back {model.n_restarts_} times, "
        f"held-out log-likelihood {model.score(X[400:]):.2f}"
    )

# %%
# Digits
# ------
# A convolutional energy that corrects a Gaussian mixture is trained with a
# replay buffer. ``sample`` runs new chains, and ``denoise`` removes the
# training noise.

digits = load_digits().images[:, None] / 8 - 1
painter = ContrastiveDivergenceDensity(
    Conv((16, 32)),
    chains="replay",
    sigma=0.2,
    standardize=False,
    n_iter=12,
    random_state=0,
).fit(digits)
drawn = painter.denoise(painter.sample(30, random_state=0))
fig, axes = plt.subplots(3, 10, figsize=(8, 2.5), layout="constrained")
for ax, image in zip(axes.flat, drawn, strict=True):
    ax.imshow(image[0], cmap="gray_r", vmin=-1, vmax=1)
    ax.set(xticks=[], yticks=[])
plt.show()
