"""
Joint energy-based model of a textbook listing: digits
======================================================

Listing 6.1 of Tomczak's *Deep Generative Modeling* (2022) is a joint
energy-based model in a class of a hundred lines: chains start from a
uniform distribution on [-1, 1] and take :math:`\\eta` Langevin steps with
independent step size :math:`\\alpha` and noise :math:`\\sigma`, while the
network is in evaluation mode. Here each of these choices is an argument of
``JEMClassifier``. The figure has the same four panels as that of the
chapter.
"""

# %%
# Model
# -----
# The data are digits of 8 x 8 pixels, scaled to [-1, 1], with uniform noise
# as wide as the gap between two grey levels. With ``base=None``
# the logits alone define the energy, :math:`E(x) = -\log \sum_y
# e^{\mathrm{logits}_y(x)}`. ``energy_net`` may return any torch module.
# Dropout, which the book does not use, is inactive while chains are run.

# sphinx_gallery_thumbnail_number = 1

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from torch import nn

from skebm import JEMClassifier
from skebm.base import Real
from skebm.distributions import Uniform
from skebm.samplers import FromNoise, Langevin


def energy_net(spec):
    return nn.Sequential(
        nn.Linear(64, 256),
        nn.ELU(),
        nn.Dropout(0.1),
        nn.Linear(256, 256),
        nn.ELU(),
        nn.Linear(256, spec.n_classes),
    )


ETA, ALPHA, SIGMA = 20, 1.0, 0.01
box = Uniform(Real((64,), -1.0, 1.0))
levels, y = load_digits(return_X_y=True)
rng = np.random.default_rng(0)
X = (levels + rng.uniform(size=levels.shape)) / 8.5 - 1
X_train, X_valid, y_train, y_valid = X[1000:], X[:500], y[1000:], y[:500]
model = JEMClassifier(
    energy_net,
    base=None,
    standardize=False,
    chains=FromNoise(n_steps=ETA, initial=box),
    sampler=Langevin(ALPHA, noise_scale=SIGMA),
    generative_weight=1.0,
    learning_rate=3e-4,
    partition=None,
    random_state=0,
)

# %%
# Training
# --------
# Each call of ``partial_fit`` trains for one epoch. After each epoch, both
# terms of the book's objective are computed on validation rows: the
# cross-entropy, and the difference of the mean energies of rows and chains,
# which replaces :math:`L_{gen}` because Z is not known.

generator = torch.Generator().manual_seed(0)


def chains(n):
    start = box.sample(n, generator)
    state, _ = model.sampler_.run(model.energy_, start, ETA, generator)
    return state.x.numpy()


L_clf, L_gen = [], []
for _ in range(50):
    model.partial_fit(X_train, y_train, classes=range(10))
    L_clf.append(log_loss(y_valid, model.predict_proba(X_valid)))
    gap = model.energy(X_valid).mean() - model.energy(chains(200)).mean()
    L_gen.append(gap)
print(f"accuracy on validation digits: {model.score(X_valid, y_valid):.1%}")
print(f"training was rolled back {model.n_restarts_} times")

# %%
# Figure
# ------
# The panels show real digits, chains after :math:`\eta` steps, and both
# loss curves.

import matplotlib.pyplot as plt


def tiled(rows):
    """One picture of 25 images of 8 x 8 pixels, five in a line."""
    images = rows.reshape(5, 5, 8, 8)
    framed = np.pad(images, [(0, 0)] * 2 + [(1, 1)] * 2, constant_values=-1)
    return framed.transpose(0, 2, 1, 3).reshape(50, 50)


figure, axes = plt.subplots(2, 2, figsize=(6.4, 5.6))
panels = {"(a) real": X_valid[:25], f"(b) chains, {ETA} steps": chains(25)}
for ax, (title, rows) in zip(axes[0], panels.items(), strict=True):
    ax.imshow(tiled(rows), cmap="gray_r", vmin=-1, vmax=1)
    ax.set(title=title, xticks=[], yticks=[], frame_on=False)
axes[1, 0].plot(np.add(L_clf, L_gen))
axes[1, 0].set(title="(c) $L_{clf} + L_{gen}$, validation", xlabel="epoch")
axes[1, 0].set_ylabel("nats")
axes[1, 1].plot(L_gen)
axes[1, 1].set(title="(d) $L_{gen}$, validation", xlabel="epoch")
plt.show()
