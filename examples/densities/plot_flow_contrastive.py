"""
Flow contrastive estimation: two moons
======================================

``FlowContrastiveDensity`` trains an energy to discriminate data from draws
of a normalizing flow, and trains the flow adversarially against the energy.
Both are normalised densities afterwards.
"""

# sphinx_gallery_thumbnail_number = 2

# %%
# The data are two interleaved arcs, and the flow is affine. A flow is a
# continuous map and cannot split a Gaussian into two separate parts, so
# some mass remains between the arcs; the energy corrects this.

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import make_moons

from skebm import FlowContrastiveDensity
from skebm.inspection import TrainingDisplay

X, _ = make_moons(4000, noise=0.08, random_state=0)
settings = {
    "flow": "maf",
    "sigma": 0.05,
    "flow_learning_rate": 1e-3,
    "random_state": 0,
}
alone = FlowContrastiveDensity(**settings, n_iter=0).fit(X[:3000])
both = FlowContrastiveDensity(**settings, n_iter=30).fit(X[:3000])

new = torch.as_tensor(X[3000:]).float()
print("mean log-likelihood of new rows, in nats")
print(
    f"  flow, maximum likelihood     {float(alone.flow_.log_prob(new).mean()):.3f}"
)
print(
    f"  flow, adversarial training   {float(both.flow_.log_prob(new).mean()):.3f}"
)
print(f"  energy                       {both.score(X[3000:]):.3f}")

# %%
# The curves show the accuracy of the classifier (0.5 is chance), and the
# gains of the energy and the flow over the flow fitted by maximum
# likelihood, in nats per row.

TrainingDisplay.from_estimator(
    both, names=["accuracy", "gain_over_base", "flow_gain"]
).plot()
plt.show()

# %%
# The panels show the three densities, and samples of the energy.

side = np.linspace(-1.8, 2.8, 150)
grid = np.stack(np.meshgrid(side, side - 0.25), -1).reshape(-1, 2)
on_grid = torch.as_tensor(grid).float()
panels = {
    "flow, maximum likelihood": alone.flow_.log_prob(on_grid).numpy(),
    "flow, adversarial training": both.flow_.log_prob(on_grid).numpy(),
    "energy": both.score_samples(grid),
}
fig, axes = plt.subplots(
    1, 4, figsize=(12, 3.2), sharex=True, sharey=True, layout="constrained"
)
for ax, (name, log_p) in zip(axes, panels.items(), strict=False):
    ax.pcolormesh(side, side - 0.25, np.exp(log_p).reshape(150, 150))
    ax.set(title=name, aspect="equal")
drawn = both.sample(1000, random_state=0, n_steps=10)
axes[3].scatter(*drawn.T, s=3)
axes[3].set(title="samples of the energy", aspect="equal")
plt.show()
