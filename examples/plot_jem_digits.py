"""
How sure a classifier may be
============================

The same network twice: as a classifier alone, and as a joint energy model, whose logits are a
density of the images as well. What becomes of its probabilities, what it says to images that are no
digits, and what it takes a digit for.
"""

# %%
# Two fits
# --------
# 797 images to train on, 1,000 to test. ``generative_weight=0`` is the classifier alone.

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
    "classifier alone": JEMClassifier(generative_weight=0, partition=None, random_state=0),
    "joint energy model": JEMClassifier(partition=None, random_state=0),
}
for name, model in models.items():
    p = model.fit(X_train, y_train).predict_proba(X_test)
    print(f"{name}: accuracy {model.score(X_test, y_test):.3f}, NLL {log_loss(y_test, p):.3f}")

# %%
# Reliability
# -----------
# The 250 images that a model is least sure of, in ten groups: the share that is named rightly
# against the mean probability. Below the line, it is surer than it may be.

import matplotlib.pyplot as plt

figure, ax = plt.subplots(figsize=(5, 4.5), layout="constrained")
ax.plot([0.4, 1], [0.4, 1], "k:", lw=1)
for name, model in models.items():
    p = model.predict_proba(X_test)
    right, sure = model.predict(X_test) == y_test, p.max(1)
    groups = np.array_split(np.argsort(sure)[:250], 10)
    ax.plot([sure[g].mean() for g in groups], [right[g].mean() for g in groups], "o-", label=name)
ax.set(xlabel="mean of the largest probability", ylabel="share named rightly")
ax.legend()
plt.show()

# %%
# Images that are no digits
# -------------------------
# Histograms of :math:`\log p(x)` up to a constant, and of the largest probability. Of noise a
# classifier may be as sure as of digits; the density is not. (A small part of that is learned here:
# the base, a mixture that is fitted first, tells images as odd as these.)

rng = np.random.default_rng(0)
images = {
    "digits": X_test,
    "black and white exchanged": 16 - X_test,
    "pixels shuffled": rng.permuted(X_test, axis=1),
    "noise": rng.uniform(0, 16, X_test.shape),
}
model = models["joint energy model"]
figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
for name, rows in images.items():
    axes[0].hist(-model.energy(rows), -np.geomspace(30, 3e6, 80)[::-1], alpha=0.6, label=name)
    sure = models["classifier alone"].predict_proba(rows).max(1)
    axes[1].hist(sure, np.linspace(0, 1, 41), alpha=0.6, label=name)
axes[0].set(xlabel="-E(x) of the joint energy model, nats", ylabel="images", xscale="symlog")
axes[1].set(xlabel="largest probability of the classifier alone", yscale="log")
axes[0].legend()
plt.show()

# %%
# Digits of a class
# -----------------
# Rows drawn from :math:`p(x \mid y)`, with the noise of training taken off: a line for each class.

drawn = model.denoise(model.sample(80, y=np.repeat(np.arange(10), 8), random_state=0))
framed = np.pad(drawn.reshape(10, 8, 8, 8), [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=16)
figure, ax = plt.subplots(figsize=(5, 6), layout="constrained")
ax.imshow(framed.transpose(0, 2, 1, 3).reshape(100, 80), cmap="gray_r", vmin=0, vmax=16)
ax.set(xticks=[], yticks=[])
plt.show()
named = model.predict(drawn) == np.repeat(np.arange(10), 8)
print(f"{named.mean():.0%} of them are of the class that was asked for, by its own judgement")
