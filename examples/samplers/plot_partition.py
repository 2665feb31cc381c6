"""
Estimates of and bounds on log Z: spins and an RBM of digits
============================================================

A likelihood is as accurate as its log Z, and log Z of most models cannot be
computed: it is estimated or bounded. :func:`skebm.partition.compare` runs
every method that applies to a model. On models small enough to enumerate,
its table shows the error of each method.
"""

# %%
# An Ising model
# --------------
# The model has sixteen units on a periodic grid, and all couplings of
# neighbours are attractive. With a weak coupling, all methods agree within
# a nat. Here, Bethe's approximation is guaranteed to be a lower bound and
# the tree-reweighted free energy an upper bound, and both take
# milliseconds.

# sphinx_gallery_thumbnail_number = 2

import textwrap

import matplotlib.pyplot as plt

from skebm.energies import ising_grid
from skebm.inspection import PartitionDisplay
from skebm.partition import choose, compare

columns = ["value", "std_error", "lower", "upper", "bound_kind"]
weak = compare(ising_grid(4, 4, coupling=0.2))
print(weak[columns].round(3).to_string())

# %%
# With a strong coupling, almost all mass is near two states: all units on,
# and all units off. Draws of the uniform base are hardly ever near them, so
# that importance sampling and bridge sampling have small effective sample
# sizes and warn of this. Annealing moves its chains to both modes.

strong = compare(ising_grid(4, 4, coupling=0.8))
print(strong[columns].round(3).to_string())
for name, warning in strong["warning"].items():
    if warning:
        print(textwrap.fill(f"{name}: {warning}", 76))

# %%
# Square brackets are bounds: dark ones are certain, light ones hold with 95
# % probability. Reverse annealing is not available, because it starts from
# rows near the model, and there are none.

figure, axes = plt.subplots(2, 1, figsize=(7.5, 8.6))
for ax, frame, name in zip(
    axes, (weak, strong), ("weak", "strong"), strict=True
):
    PartitionDisplay(frame).plot(ax)
    ax.set_title(f"4 x 4 spins, {name} coupling")
plt.show()

# %%
# A restricted Boltzmann machine
# ------------------------------
# An estimator passes its base, its sampler and its rows, so that reverse
# annealing runs too. The attribute ``log_partition_method_`` names the
# method that the estimator uses itself, with the reason; larger models use
# other methods.

import torch
from sklearn.datasets import load_digits

from skebm import RBMEstimator
from skebm.energies import BernoulliRBM

X = (load_digits().data > 7).astype(float)
rbm = RBMEstimator(n_components=12, n_iter=60, random_state=0).fit(X)
wide = BernoulliRBM(784, 500, generator=torch.Generator().manual_seed(0))
chain = ising_grid(1, 1000, coupling=0.5, periodic=False)
for method in (rbm.log_partition_method_, choose(wide), choose(chain)):
    print(textwrap.fill(str(method), 76))

# %%
# With couplings of both signs, Bethe's approximation is no longer a bound.
# As the couplings of a trained RBM are also strong, the upper bounds hold
# but lie about sixty nats away, outside the panel, as the arrows indicate.
# Forward and reverse annealing agree within hundredths of a nat.
# ``partition="auto"`` uses this pair if the states cannot be enumerated.

display = PartitionDisplay.from_estimator(rbm).plot()
display.ax_.set_title("RBM of 64 columns and 12 hidden units on digits")
print(display.frame[columns].round(3).to_string())
plt.show()
