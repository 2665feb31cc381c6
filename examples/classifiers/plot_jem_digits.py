"""
Joint energy-based model of digits: calibration, outliers, samples
==================================================================

The same network is trained as a plain classifier and as a joint
energy-based model, whose logits also define a density of the images. The
two are compared by the calibration of their probabilities and on images
that are not digits; the joint model also generates digits of a given class.
"""

# sphinx_gallery_thumbnail_number = 3

# %%
# Training
# --------
# There are 797 training and 1,000 test images. ``generative_weight=0`` is
# the plain classifier.

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from skebm import JEMClassifier

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(
    X, y, test_size=1000, random_state=0, stratify=y
)
models = {
    "plain classifier": JEMClassifier(
        generative_weight=0, partition=None, random_state=0
    ),
    "joint model": JEMClassifier(partition=None, random_state=0),
}
for name, model in models.items():
    p = model.fit(X_train, y_train).predict_proba(X_test)
    print(
        f"{name}: accuracy {model.score(X_test, y_test):.3f}, NLL {log_loss(y_test, p):.3f}"
    )

# %%
# Calibration
# -----------
# The reliability diagram shows accuracy against mean confidence for the 250
# images with the lowest confidence, in ten groups. A model is overconfident
# where its curve is below the diagonal.

import matplotlib.pyplot as plt

figure, ax = plt.subplots(figsize=(5, 4.5), layout="constrained")
ax.plot([0.4, 1], [0.4, 1], "k:", lw=1)
for name, model in models.items():
    p = model.predict_proba(X_test)
    correct, confidence = model.predict(X_test) == y_test, p.max(1)
    groups = np.array_split(np.argsort(confidence)[:250], 10)
    mean_confidence = [confidence[group].mean() for group in groups]
    ax.plot(
        mean_confidence,
        [correct[group].mean() for group in groups],
        "o-",
        label=name,
    )
ax.set(xlabel="mean confidence", ylabel="accuracy")
ax.legend()
plt.show()

# %%
# Out-of-distribution images
# --------------------------
# The histograms show :math:`\log p(x)` up to a constant, and the largest
# class probability. A classifier can be as confident on noise as on digits,
# whereas the density of noise is low. (Little of this is learned by the
# network: the base, a mixture fitted first, already detects such images.)

rng = np.random.default_rng(0)
images = {
    "digits": X_test,
    "inverted": 16 - X_test,
    "pixels shuffled": rng.permuted(X_test, axis=1),
    "noise": rng.uniform(0, 16, X_test.shape),
}
model = models["joint model"]
figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
for name, rows in images.items():
    axes[0].hist(
        -model.energy(rows),
        -np.geomspace(30, 3e6, 80)[::-1],
        alpha=0.6,
        label=name,
    )
    confidence = models["plain classifier"].predict_proba(rows).max(1)
    axes[1].hist(confidence, np.linspace(0, 1, 41), alpha=0.6, label=name)
axes[0].set(
    xlabel="-E(x) of the joint model, nats",
    ylabel="images",
    xscale="symlog",
)
axes[1].set(
    xlabel="largest probability of the plain classifier", yscale="log"
)
axes[0].legend()
plt.show()

# %%
# Class-conditional samples
# -------------------------
# The figure has one row for each class, with samples from :math:`p(x \mid
# y)` after removal of the training noise.

drawn = model.denoise(
    model.sample(80, y=np.repeat(np.arange(10), 8), random_state=0)
)
framed = np.pad(
    drawn.reshape(10, 8, 8, 8),
    [(0, 0), (0, 0), (1, 1), (1, 1)],
    constant_values=16,
)
figure, ax = plt.subplots(figsize=(5, 6), layout="constrained")
ax.imshow(
    framed.transpose(0, 2, 1, 3).reshape(100, 80),
    cmap="gray_r",
    vmin=0,
    vmax=16,
)
ax.set(xticks=[], yticks=[])
plt.show()
agrees = model.predict(drawn) == np.repeat(np.arange(10), 8)
print(
    f"{agrees.mean():.0%} of the samples are classified as the class they were drawn for"
)
