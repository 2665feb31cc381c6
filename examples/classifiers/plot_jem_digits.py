"""
Joint energy-based model of digits: calibration, outliers, samples
==================================================================

The same network is trained as a plain classifier and as a joint
energy-based model, whose logits also define a density of the images. The
two are compared by the calibration of their probabilities and on images
that are not digits; the joint model also generates digits of a given class.
"""

# %%
# Training
# --------
# There are 597 training and 1,000 test images. Grey levels are whole
# numbers from 0 to 16; uniform noise as wide as the gap between them makes
# them continuous. ``generative_weight=0`` is the plain classifier. The
# calibration error is the mean difference of confidence and accuracy.

# sphinx_gallery_thumbnail_number = 2

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss

from skebm import JEMClassifier
from skebm.metrics import expected_calibration_error

rng = np.random.default_rng(0)
levels, y = load_digits(return_X_y=True)
X = levels + rng.uniform(size=levels.shape)
X_train, X_test, y_train, y_test = X[:597], X[797:], y[:597], y[797:]
settings = {"n_iter": 50, "partition": None, "random_state": 0}
plain = JEMClassifier(generative_weight=0, **settings)
joint = JEMClassifier(**settings)
models = {"plain classifier": plain, "joint model": joint}
print("                   accuracy   log loss, nats   calibration error")
for name, model in models.items():
    p = model.fit(X_train, y_train).predict_proba(X_test)
    error = expected_calibration_error(y_test, p)
    print(
        f"{name:18} {model.score(X_test, y_test):8.1%}"
        f" {log_loss(y_test, p):16.3f} {error:19.3f}"
    )

# %%
# Out-of-distribution images
# --------------------------
# The histograms show :math:`\log p(x)` up to a constant. A classifier can
# be as confident on noise as on digits, whereas the density of noise is
# low. (Little of this is learned by the network: the base, a mixture fitted
# first, already detects such images.)

import matplotlib.pyplot as plt

images = {
    "digits": X_test,
    "inverted": 17 - X_test,
    "pixels shuffled": rng.permuted(X_test, axis=1),
    "noise": rng.uniform(0, 17, X_test.shape),
}
bins = -np.geomspace(30, 1e5, 60)[::-1]
figure, ax = plt.subplots(figsize=(7, 3))
for name, rows in images.items():
    log_p = np.clip(-joint.energy(rows), bins[0], bins[-1])
    style = {"histtype": "stepfilled", "alpha": 0.5, "label": name}
    ax.hist(log_p, bins, **style)
    confidence = plain.predict_proba(rows).max(1).mean()
    print(f"{name:16} mean confidence of the classifier {confidence:.2f}")
ax.set(xscale="symlog", xlim=(bins[0], bins[-1]), ylabel="images")
ax.set_xlabel("-E(x) of the joint model, nats")
ax.legend(loc="upper center")
plt.show()

# %%
# Class-conditional samples
# -------------------------
# The figure has one column for each class, with samples from :math:`p(x
# \mid y)` after removal of the training noise.

labels = np.tile(np.arange(10), 5)
drawn = joint.denoise(
    joint.sample(50, y=labels, n_steps=40, random_state=0)
)
framed = np.pad(drawn.reshape(5, 10, 8, 8), [(0, 0)] * 2 + [(1, 1)] * 2)
figure, ax = plt.subplots(figsize=(7, 3.6))
picture = framed.transpose(0, 2, 1, 3).reshape(50, 100)
ax.imshow(picture, cmap="gray_r", vmin=0, vmax=17)
ax.set(xticks=4.5 + 10 * np.arange(10), xticklabels=range(10), yticks=[])
ax.set(xlabel="class", frame_on=False)
ax.tick_params(length=0)
plt.show()
agrees = joint.predict(drawn) == labels
print(f"{agrees.mean():.0%} of the samples are classified as their class")
