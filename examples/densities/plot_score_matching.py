"""
Score matching: two moons and noisy digits
==========================================

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

# sphinx_gallery_thumbnail_number = 1

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits, make_moons
from sklearn.mixture import GaussianMixture

from skebm import ScoreMatchingDensity
from skebm.energies import MLP
from skebm.inspection import EnergyDisplay

X, _ = make_moons(1500, noise=0.1, random_state=0)
X = X * [100.0, 0.01] + [0.0, 5.0]  # in centimetres and in kilometres
train, test = X[:1000], X[1000:]

model = ScoreMatchingDensity(random_state=0).fit(train)
mixtures = [
    GaussianMixture(k, random_state=0).fit(train) for k in range(1, 16)
]
by_bic = min(mixtures, key=lambda mixture: mixture.bic(train))
print("mean log-likelihood of new rows, in nats")
print(f"  model          {model.score(test):.3f}")
print(f"  mixture by BIC {by_bic.score(test):.3f}")
print(
    f"log Z: {model.log_partition_:.4f} +- {model.log_partition_std_:.4f}"
)

# %%
# The left panel shows the energy, the data, and samples of the model.
# ``sample(given=...)`` draws from a conditional distribution: the right
# panel shows that of the first column given that the second is 5.005 km, a
# line that crosses both moons.

fig, axes = plt.subplots(1, 2, figsize=(8, 3.4), width_ratios=[1.25, 1])
EnergyDisplay.from_estimator(
    model, test[:200], n_samples=200, random_state=0
).plot(axes[0])
axes[0].axhline(5.005, color="C1", linewidth=1)
axes[0].set(xlabel="x0, cm", ylabel="x1, km")
drawn = model.sample(1000, random_state=0, given=[np.nan, 5.005])
axes[1].hist(drawn[:, 0], 60, density=True)
axes[1].set(xlabel="x0, cm", ylabel="density", title="given x1 = 5.005 km")
plt.show()

# %%
# ``impute`` replaces the NaN of a table by draws.

holes = np.array([[np.nan, 5.009], [-80.0, np.nan]])
print(model.impute(holes, random_state=0).round(3))

# %%
# Digits
# ------
# With noise of standard deviation 0.5, the density of noisy digits is
# smooth enough for chains to mix; removing the noise by Tweedie's formula,
# with one gradient, gives digits. Pixels have the same scale, so they are
# not standardised. Grey levels are whole numbers from 0 to 16; uniform
# noise as wide as the gap between them makes them continuous. The column of
# pixels at the left, which is nearly always empty, is left out.

rng = np.random.default_rng(0)
levels = load_digits().images[:, :, 1:].reshape(-1, 56)
digits = (levels + rng.uniform(size=levels.shape)) / 8.5 - 1
seen, unseen = digits[:1500], digits[1500:]
painter = ScoreMatchingDensity(
    MLP(hidden_sizes=(256, 256), residual=True),
    base="gaussian",
    sigma=0.5,
    standardize=False,
    n_iter=40,
    random_state=0,
).fit(seen)

n = 10
noisy = unseen[:n] + 0.5 * rng.standard_normal((n, 56))
rows = {
    "unseen digits": unseen[:n],
    "with noise": noisy,
    "denoised": painter.denoise(noisy),
    "samples": painter.denoise(
        painter.sample(n, random_state=0, n_steps=300)
    ),
}
fig, axes = plt.subplots(len(rows), n, figsize=(7.5, 3.2))
for line, (name, images) in zip(axes, rows.items(), strict=True):
    for ax, image in zip(line, images, strict=True):
        ax.imshow(image.reshape(8, 7), cmap="gray_r", vmin=-1, vmax=1)
        ax.set(xticks=[], yticks=[], frame_on=False)
    line[0].set_ylabel(name, rotation=0, ha="right", va="center")
plt.show()
error = np.square(rows["denoised"] - unseen[:n]).mean()
print(f"squared error, relative to the noise: {error / 0.25:.2f}")
