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
# The data are digits of 8 x 8 pixels, scaled to [-1, 1]. With ``base=None``
# the logits alone define the energy, :math:`E(x) = -\log \sum_y
# e^{\mathrm{logits}_y(x)}`. ``energy_net`` may return any torch module.
# Dropout, which the book does not use, is inactive while chains are run.

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
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
X, y = load_digits(return_X_y=True)
X = X / 8 - 1
X_train, X_valid, y_train, y_valid = train_test_split(
    X, y, test_size=500, random_state=0
)
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
    return model.sampler_.run(model.energy_, start, ETA, generator)[
        0
    ].x.numpy()


L_clf, L_gen = [], []
for _ in range(60):
    model.partial_fit(X_train, y_train, classes=range(10))
    L_clf.append(log_loss(y_valid, model.predict_proba(X_valid)))
    L_gen.append(
        model.energy(X_valid).mean() - model.energy(chains(500)).mean()
    )
print(
    f"accuracy on {len(X_valid)} validation digits: {model.score(X_valid, y_valid):.1%}"
)
print(f"training was rolled back {model.n_restarts_} times")

# %%
# Figure
# ------
# The panels show real digits, chains after :math:`\eta` steps, and both
# loss curves.

import matplotlib.pyplot as plt

figure, axes = plt.subplots(2, 2, figsize=(8, 8), layout="constrained")
for ax, rows, title in (
    (axes[0, 0], X_valid[:36], "(a) real"),
    (axes[0, 1], chains(36), f"(b) chains after {ETA} steps"),
):
    framed = np.pad(
        rows.reshape(6, 6, 8, 8),
        [(0, 0), (0, 0), (1, 1), (1, 1)],
        constant_values=-0.5,
    )
    ax.imshow(
        framed.transpose(0, 2, 1, 3).reshape(60, 60),
        cmap="gray",
        vmin=-1,
        vmax=1,
    )
    ax.set(title=title, xticks=[], yticks=[])
axes[1, 0].plot(np.add(L_clf, L_gen))
axes[1, 0].set(title="(c) validation, $L_{clf} + L_{gen}$", xlabel="epoch")
axes[1, 1].plot(L_gen)
axes[1, 1].set(title="(d) validation, $L_{gen}$", xlabel="epoch")
plt.show()
