"""
RBM features for logistic regression: shifted digits
====================================================

A restricted Boltzmann machine learns features without labels. A logistic
regression on these features is compared with one on raw pixels. Each digit
is shifted by one pixel in the four directions, as in scikit-learn's example
of :class:`~sklearn.neural_network.BernoulliRBM`. Both classifiers are tuned
by the same cross-validation.

Training and test digits are split *before* shifting, and the folds keep the
copies of a digit together. Otherwise copies of a test digit would be in the
training set.
"""

# %%
# Data: 1797 digits, five copies of each
# --------------------------------------

# sphinx_gallery_thumbnail_number = 1

import time

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def shifted_copies(images):
    """Each 8 x 8 image unchanged and shifted right, left, down and up.

    The copies of an image are adjacent.
    """
    padded = np.pad(images.reshape(-1, 8, 8), ((0, 0), (1, 1), (1, 1)))
    corners = [(1, 1), (1, 0), (1, 2), (0, 1), (2, 1)]
    copies = [
        padded[:, top : top + 8, left : left + 8] for top, left in corners
    ]
    return np.stack(copies, axis=1).reshape(-1, 64)


X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(
    X / 16, y, test_size=0.25, stratify=y, random_state=0
)
n_copies = 5
X_train, X_test = shifted_copies(X_train), shifted_copies(X_test)
y_train, y_test = np.repeat(y_train, n_copies), np.repeat(y_test, n_copies)
# Copies of a digit stay in one fold.
digit_of_row = np.arange(len(X_train)) // n_copies
print(f"{len(X_train)} training and {len(X_test)} test images")

# %%
# Two classifiers, each with a grid search
# ----------------------------------------
# Before a next step of a pipeline, :class:`skebm.RBMEstimator` is fitted
# for features without any argument: independent columns as its base, 256
# hidden units, ten epochs. Fitted by ``fit`` it is a density, whose
# likelihood is better and whose features are worse. The strength of
# regularisation of both logistic regressions is tuned.

from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedGroupKFold
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from skebm import RBMEstimator

folds = StratifiedGroupKFold(3, shuffle=True, random_state=0)
linear = [
    ("scale", StandardScaler()),
    ("logistic", LogisticRegression(max_iter=2000)),
]
rbm = RBMEstimator(random_state=0)
searches = {
    "pixels": GridSearchCV(
        Pipeline(linear),
        {"logistic__C": [0.1, 1, 10]},
        cv=folds,
        n_jobs=1,
    ),
    "RBM features": GridSearchCV(
        Pipeline([("rbm", rbm), *linear]),
        {"logistic__C": [1, 10]},
        cv=folds,
        n_jobs=1,
    ),
}
for name, search in searches.items():
    start = time.perf_counter()
    search.fit(X_train, y_train, groups=digit_of_row)
    print(
        f"{name:13} C = {search.best_params_['logistic__C']:g}, "
        f"cross-validated accuracy {search.best_score_:.1%}, "
        f"{time.perf_counter() - start:.0f} s"
    )

# %%
# Accuracy on the test images
# ---------------------------
# Errors on the five copies of a digit are dependent, so the standard errors
# are those of means over digits, not over images.


def mean_and_error(per_digit):
    return per_digit.mean(), per_digit.std(ddof=1) / len(per_digit) ** 0.5


accuracy = {
    name: (search.predict(X_test) == y_test)
    .reshape(-1, n_copies)
    .mean(axis=1)
    for name, search in searches.items()
}
n_digits = len(X_test) // n_copies
print(f"Test accuracy, n = {len(X_test)} images of {n_digits} digits")
for name, per_digit in accuracy.items():
    mean, error = mean_and_error(per_digit)
    print(f"  {name:13} {mean:6.1%}   standard error {error:.1%}")
gain, error = mean_and_error(accuracy["RBM features"] - accuracy["pixels"])
print(f"  {'gain':13} {gain:+6.1%}   standard error {error:.1%}")

# %%
# The features, and the accuracy of each digit
# --------------------------------------------

import matplotlib.pyplot as plt

from skebm.inspection import RBMDisplay

figure = plt.figure(figsize=(8, 3.8))
left, right = figure.subfigures(1, 2, width_ratios=[1.1, 1])
best_rbm = searches["RBM features"].best_estimator_["rbm"]
RBMDisplay.from_estimator(best_rbm, image_shape=(8, 8), n_samples=0).plot(
    "filters", figure=left
)

ax = right.subplots()
kind = y_test[::n_copies]
by_digit = {
    name: [per_digit[kind == k].mean() for k in range(10)]
    for name, per_digit in accuracy.items()
}
ax.hlines(range(10), *by_digit.values(), color="0.8", zorder=0)
for name, marker, colour in (
    ("pixels", "s", "C1"),
    ("RBM features", "o", "C0"),
):
    values = by_digit[name]
    ax.scatter(values, range(10), marker=marker, color=colour, label=name)
ax.xaxis.set_major_formatter("{x:.0%}")
ax.set(yticks=range(10), xlabel="accuracy on test images", ylabel="digit")
ax.set_title("Logistic regression")
ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
ax.invert_yaxis()
plt.show()
