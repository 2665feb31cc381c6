"""
Sum of two RBM energies: thick threes, which neither has seen
=============================================================

The normalised product of two densities is the density of rows that satisfy
both models at once, and its energy is the sum of theirs. Here one
restricted Boltzmann machine is trained on threes of usual thickness, and
another one on thick digits of other kinds. Neither has seen a thick three,
but their sum generates such digits.
"""

# %%
# Digits of 64 bits, from scikit-learn. The thickness of a digit is its
# number of ones.
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.svm import SVC

from skebm import RBMEstimator
from skebm.samplers import GibbsWithGradients

digits = load_digits()
X, kind = (digits.data > 7).astype(np.float32), digits.target
ink = X.sum(1)
is_three, is_thick = kind == 3, ink >= np.quantile(ink, 0.7)
both = is_three & is_thick
print(
    f"{is_three.sum()} threes, {is_thick.sum()} thick digits, {both.sum()} thick threes"
)

# %%
# Two machines, and their sum
# ---------------------------
# Thick threes are in neither of the training sets. Energies are modules
# that can be added. The sum has no hidden layer that block Gibbs sampling
# could draw, so that the chains take Gibbs steps that are informed by
# gradients. The chains start at threes of usual thickness.
settings = {"n_components": 64, "base": "independent", "random_state": 0}
three = RBMEstimator(**settings, n_iter=300).fit(X[is_three & ~both])
thick = RBMEstimator(**settings, n_iter=200).fit(X[is_thick & ~both])

energy = three.energy_ + thick.energy_
start = torch.as_tensor(X[is_three & ~both][:100])
generator = torch.Generator().manual_seed(0)
state, info = GibbsWithGradients().run(energy, start, 5000, generator)
print(f"{type(energy).__name__}; acceptance {float(info.acceptance):.2f}")

# %%
# What came out
# -------------
# The table shows the mean ink (number of ones) of each group, and how many
# of its rows a classifier that was trained on all digits takes for threes.
groups = {
    "threes, training": X[is_three & ~both],
    "thick digits, training": X[is_thick & ~both],
    "samples, three": three.sample(100, random_state=0),
    "samples, thick": thick.sample(100, random_state=0),
    "samples, three AND thick": state.x.numpy(),
    "thick threes, never seen": X[both],
}
classifier = SVC().fit(X, kind)
for name, rows in groups.items():
    share = (classifier.predict(rows) == 3).mean()
    print(f"{name:26s} ink {rows.sum(1).mean():5.1f}   threes {share:6.1%}")

# %%
# The draws have about half of the ink by which thick threes exceed the
# others: the rows on which the two models agree lie between their training
# sets. Weights shift this balance, as in ``three.energy_ + 2.0 *
# thick.energy_``, at the cost of fewer threes.
fig, axes = plt.subplots(len(groups), 10, figsize=(7, 5.6))
for row, (name, rows) in zip(axes, groups.items(), strict=True):
    for ax, image in zip(row, rows[:10], strict=True):
        ax.imshow(image.reshape(8, 8), cmap="gray_r")
        ax.set_axis_off()
    row[0].set_title(name, loc="left", fontsize=9)
fig.tight_layout()
