"""
Flow contrastive estimation: two moons
======================================

``FlowContrastiveDensity`` trains an energy to discriminate data from draws
of a normalizing flow, and trains the flow adversarially against the energy.
Both are normalised densities afterwards.
"""

# %%
# A flow and an energy that corrects it
# -------------------------------------
# The data are two interleaved arcs with noise, whose density is a mean of
# Gaussians along the arcs. The flow is affine: it is a continuous map and
# cannot split a Gaussian into two separate parts, so some mass remains
# between the arcs; the energy corrects this.

# sphinx_gallery_thumbnail_number = 1

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import make_moons
from sklearn.neighbors import KernelDensity

from skebm import FlowContrastiveDensity
from skebm.energies import MLP
from skebm.inspection import TrainingDisplay

X, _ = make_moons(2000, noise=0.08, random_state=0)
train, test = X[:1000], X[1000:]
truth = KernelDensity(bandwidth=0.08).fit(make_moons(1000)[0])

settings = {"flow": "maf", "sigma": 0.02, "random_state": 0}
alone = FlowContrastiveDensity(**settings, n_iter=0).fit(train)
both = FlowContrastiveDensity(
    MLP(n_frequencies=32), **settings, flow_learning_rate=1e-3, n_iter=30
).fit(train)


def of_flow(model, X):
    """Log density of the flow of a model."""
    with torch.no_grad():
        return model.flow_.log_prob(torch.as_tensor(X).float()).numpy()


log_densities = {
    "flow alone": lambda X: of_flow(alone, X),
    "adversarial flow": lambda X: of_flow(both, X),
    "energy": both.score_samples,
}
print("KL divergence of the truth from each model, in nats")
for name, log_density in log_densities.items():
    gap = truth.score_samples(test) - log_density(test)
    error = gap.std() / len(gap) ** 0.5
    print(f"  {name:17} {gap.mean():.3f}, standard error {error:.3f}")

# %%
# The densities
# -------------
# All panels have the same colours. The points are rows of the data and
# samples of the energy.

side = np.linspace(-2, 3, 201)
grid = np.stack(np.meshgrid(side, side - 0.25), -1).reshape(-1, 2)
samples = both.sample(300, random_state=0, n_steps=10)
panels = {"truth": truth.score_samples} | log_densities
points = {
    "truth": (test[:300], "rows"),
    "energy": (samples, "samples"),
}
fig, axes = plt.subplots(2, 2, figsize=(7, 5), sharex=True, sharey=True)
for ax, (name, log_density) in zip(axes.flat, panels.items(), strict=True):
    p = np.exp(log_density(grid)).reshape(len(side), -1)
    ax.pcolormesh(side, side - 0.25, p, vmin=0, vmax=0.6, rasterized=True)
    ax.set(xlim=(-1.8, 2.8), ylim=(-1.2, 1.7), title=name)
    if name in points:
        rows, kind = points[name]
        ax.plot(*rows.T, ".", color="C1", markersize=2)
        ax.set_title(f"{name}, {len(rows)} {kind}")
    ax.set(xticks=[], yticks=[], frame_on=False)
plt.show()

# %%
# Training
# --------
# The curves show the accuracy of the classifier (0.5 is chance), and the
# gain of the energy over the flow fitted by maximum likelihood, in nats per
# row.

TrainingDisplay.from_estimator(
    both, names=["accuracy", "gain_over_base"]
).plot()
plt.show()
