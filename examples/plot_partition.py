"""
log Z by every method
=====================

A likelihood is worth as much as its log Z, and log Z of most models cannot be computed: it is
estimated or bounded. :func:`skebm.partition.compare` runs every method that takes a model, and on
models small enough to enumerate it shows what each of them is worth.
"""

# %%
# A grid of spins
# ---------------
# Sixteen units on a ring in both directions, all pairs of neighbours attractive. While the coupling
# is weak, all methods are within a nat. Bethe's approximation is a certain lower bound here,
# random trees an upper one, and both take milliseconds.

import matplotlib.pyplot as plt

from skebm.energies import ising_grid
from skebm.inspection import PartitionDisplay
from skebm.partition import choose, compare

columns = ["value", "std_error", "lower", "upper", "bound_kind", "seconds"]
weak = compare(ising_grid(4, 4, coupling=0.2))
print(weak[columns].round(3).to_string())

# %%
# A strong coupling puts almost all mass near two states, all units on and all off. Fair coins
# hardly ever fall so: importance sampling and the bridge rest on a few draws, and say it
# themselves. Annealing brings its chains to both.

strong = compare(ising_grid(4, 4, coupling=0.8))
print(strong[columns].round(3).to_string())
for name, warning in strong["warning"].items():
    if warning:
        print(f"\n{name}: {warning}")

# %%
# Brackets are ends of the interval: dark ones hold for certain, light ones with 95 % probability.
# Reverse annealing starts at rows near the model, and there are none.

figure, axes = plt.subplots(2, 1, figsize=(8, 9.5), layout="constrained")
for ax, frame, name in zip(axes, (weak, strong), ("weak", "strong"), strict=True):
    PartitionDisplay(frame).plot(ax)
    ax.set_title(f"4 x 4 spins, {name} coupling")
plt.show()

# %%
# A fitted machine
# ----------------
# An estimator passes its base, its sampler and its own rows, so that reverse annealing runs too.
# What it takes by itself, and why, is an attribute; for larger models it is another method.

import torch
from sklearn.datasets import load_digits

from skebm import RBMEstimator
from skebm.energies import BernoulliRBM

X = (load_digits().data > 7).astype(float)
rbm = RBMEstimator(n_components=12, n_iter=60, random_state=0).fit(X)
print(rbm.log_partition_method_)
print(choose(BernoulliRBM(784, 500, generator=torch.Generator().manual_seed(0))))
print(choose(ising_grid(1, 1000, coupling=0.5, periodic=False)))

# %%
# Couplings of either sign take the guarantee from Bethe's approximation, and those of a machine
# that has learned are strong: the bounds hold, sixty nats away, where the arrows point.
# Annealing from below and from above meets within hundredths of a nat. That is the pair that
# ``partition="auto"`` takes where states cannot be enumerated.

display = PartitionDisplay.from_estimator(rbm).plot()
display.ax_.set_title("RBM of 64 columns and 12 hidden units on digits")
print(display.frame[columns].round(3).to_string())
plt.show()
