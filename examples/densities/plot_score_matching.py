"""
Score matching: two moons and digits
====================================

``ScoreMatchingDensity`` fits a base, here a stack of Gaussian mixtures and
kernels, and a network that corrects it, without sampling in training. The
result is a normalised density with log-likelihoods, scores, samples,
imputations and anomaly scores. As it is trained on noisy rows, it can also
denoise images.
"""

# %%
# Two moons
# ---------
# Columns may have any units: the model standardises them, and
# log-likelihoods refer to the units of X.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits, make_moons
from sklearn.mixture import GaussianMixture

from skebm import ScoreMatchingDensity
from skebm.energies import MLP
from skebm.inspection import EnergyDisplay, TrainingDisplay

X, _ = make_moons(2000, noise=0.1, random_state=0)
X = X * [100.0, 0.01] + [0.0, 5.0]  # in centimetres and in kilometres
train, test = X[:1500], X[1500:]

model = ScoreMatchingDensity(random_state=0).fit(train)
mixtures = [
    GaussianMixture(k, random_state=0).fit(train) for k in range(1, 20)
]
by_bic = min(mixtures, key=lambda mixture: mixture.bic(train))
print(
    f"held-out log-likelihood: {model.score(test):.3f}; mixture by BIC {by_bic.score(test):.3f}"
)
print(
    f"log Z: {model.log_partition_:.4f} +- {model.log_partition_std_:.4f}"
)
print(model.log_partition_method_)

# %%
# The left panel shows the energy, the data, and samples of the model.
# ``sample(given=...)`` draws from a conditional distribution: the right
# panel shows that of the first column given that the second is 5.005 km, a
# line that crosses both moons. ``impute`` replaces the NaN of a table by
# draws.

fig, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
EnergyDisplay.from_estimator(
    model, test, n_samples=200, random_state=0
).plot(axes[0])
drawn = model.sample(1000, random_state=0, given=[np.nan, 5.005])
axes[1].hist(drawn[:, 0], 60, density=True)
axes[1].set(xlabel="x0, cm", title="drawn given x1 = 5.005")
holes = np.array([[np.nan, 5.009], [-80.0, np.nan]])
print("imputed:\n", model.impute(holes, random_state=0).round(3))
plt.show()

# %%
# The figure shows the loss during training; a constant energy has a loss of
# 0.

TrainingDisplay.from_estimator(model).plot()
plt.show()

# %%
# Digits
# ------
# With noise of standard deviation 0.5, the density of noisy digits is
# smooth enough for chains to mix; removing the noise by Tweedie's formula,
# with one gradient, gives digits. Pixels have the same scale, so they are
# not standardised.

digits = load_digits().data / 8 - 1
seen, unseen = digits[:1500], digits[1500:]
network = MLP(hidden_sizes=(256, 256), residual=True)
painter = ScoreMatchingDensity(
    network,
    base="gaussian",
    sigma=0.5,
    standardize=False,
    n_iter=100,
    random_state=0,
)
painter.fit(seen)

chains = painter.denoise(painter.sample(16, random_state=0, n_steps=500))
noisy = unseen[:16] + 0.5 * np.random.default_rng(0).standard_normal(
    (16, 64)
)
rows = {
    "samples at the end of\nchains of 500 steps": chains,
    "unseen digits": unseen[:16],
    "with noise": noisy,
    "denoised": painter.denoise(noisy),
}
fig, axes = plt.subplots(4, 16, figsize=(12, 3.6), layout="constrained")
for line, (name, images) in zip(axes, rows.items(), strict=True):
    for ax, image in zip(line, images, strict=True):
        ax.imshow(image.reshape(8, 8), cmap="gray_r", vmin=-1, vmax=1)
        ax.set(xticks=[], yticks=[])
    line[0].set_ylabel(name, rotation=0, ha="right", va="center")
plt.show()
error = (
    np.square(rows["denoised"] - unseen[:16]).mean()
    / np.square(noisy - unseen[:16]).mean()
)
print(f"squared error after denoising, relative to the noise: {error:.2f}")
