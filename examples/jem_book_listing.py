"""
The listing of a book, out of parts
===================================

Tomczak's *Deep Generative Modeling* (2022) writes a joint energy model as one class of a hundred
lines, listing 6.1: chains start uniformly in the box [-1, 1], go through :math:`\\eta` Langevin
steps whose length :math:`\\alpha` and noise :math:`\\sigma` are chosen apart, and the network is in
``eval()`` meanwhile. Here every line of it is an argument, and the figure of the chapter comes out
of the same four panels.
"""

# %%
# The class
# ---------
# Digits of 8 x 8 pixels, scaled to [-1, 1]. ``base=None`` leaves nothing but the logits,
# :math:`E(x) = -\log \sum_y e^{\mathrm{logits}_y(x)}`. The ``energy_net`` is any torch module; its
# dropout, which the book does not have, is there to be switched off while chains move.

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
X_train, X_valid, y_train, y_valid = train_test_split(X, y, test_size=500, random_state=0)
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
# The loop
# --------
# ``partial_fit`` is one pass. After each, both terms of the book's objective are worked out on rows
# that training has not seen: the cross-entropy, and by how much the energies of rows and of chains
# differ, which is what :math:`L_{gen}` comes to as long as nobody asks for Z.

generator = torch.Generator().manual_seed(0)


def chains(n):
    start = box.sample(n, generator)
    return model.sampler_.run(model.energy_, start, ETA, generator)[0].x.numpy()


L_clf, L_gen = [], []
for _ in range(60):
    model.partial_fit(X_train, y_train, classes=range(10))
    L_clf.append(log_loss(y_valid, model.predict_proba(X_valid)))
    L_gen.append(model.energy(X_valid).mean() - model.energy(chains(500)).mean())
print(f"{model.score(X_valid, y_valid):.1%} of {len(X_valid)} digits are named rightly")
print(f"training was rolled back {model.n_restarts_} times")

# %%
# The figure
# ----------
# Real digits, chains after :math:`\eta` steps, and the two curves.

import matplotlib.pyplot as plt

figure, axes = plt.subplots(2, 2, figsize=(8, 8), layout="constrained")
for ax, rows, title in (
    (axes[0, 0], X_valid[:36], "(a) real"),
    (axes[0, 1], chains(36), f"(b) chains after {ETA} steps"),
):
    framed = np.pad(
        rows.reshape(6, 6, 8, 8), [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=-0.5
    )
    ax.imshow(framed.transpose(0, 2, 1, 3).reshape(60, 60), cmap="gray", vmin=-1, vmax=1)
    ax.set(title=title, xticks=[], yticks=[])
axes[1, 0].plot(np.add(L_clf, L_gen))
axes[1, 0].set(title="(c) validation, $L_{clf} + L_{gen}$", xlabel="pass")
axes[1, 1].plot(L_gen)
axes[1, 1].set(title="(d) validation, $L_{gen}$", xlabel="pass")
plt.show()
