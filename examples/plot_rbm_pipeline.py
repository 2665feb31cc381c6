"""
Features from an RBM for a classifier
=====================================

A linear classifier on raw pixels has to see every digit at every place. Here each digit is nudged
by one pixel in the four directions, as in scikit-learn's own example of
:class:`~sklearn.neural_network.BernoulliRBM`, and a restricted Boltzmann machine learns features
for it, without labels. Both classifiers are tuned by the same cross-validation.

Training and test digits are split *before* nudging, and the folds keep the copies of a digit
together. Otherwise copies of a test digit would be in the training set.
"""

# %%
# Data: 1797 digits, five copies of each
# --------------------------------------

import time

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def nudge(pictures):
    """Every 8 x 8 picture as it is and moved right, left, down and up; its copies adjacent."""
    padded = np.pad(pictures.reshape(-1, 8, 8), ((0, 0), (1, 1), (1, 1)))
    corners = [(1, 1), (1, 0), (1, 2), (0, 1), (2, 1)]
    copies = [padded[:, top : top + 8, left : left + 8] for top, left in corners]
    return np.stack(copies, axis=1).reshape(-1, 64)


X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(
    X / 16, y, test_size=0.25, stratify=y, random_state=0
)
n_copies = 5
X_train, X_test = nudge(X_train), nudge(X_test)
y_train, y_test = np.repeat(y_train, n_copies), np.repeat(y_test, n_copies)
digit_of_row = np.arange(len(X_train)) // n_copies  # copies of a digit stay in one fold
print(f"{len(X_train)} training and {len(X_test)} test pictures of 8 x 8 grey values in [0, 1]")

# %%
# Two classifiers, each searched over its settings
# ------------------------------------------------
# A sparsity target makes every hidden unit answer to few pictures (5 %), which suits a classifier:
# without it the features lose about half of what they gain over the pixels. The logistic regression
# on pixels may choose how strongly to regularise; the one on features takes its default.
#
# The features of scikit-learn's ``BernoulliRBM(200, learning_rate=0.06)`` serve as well (a test
# accuracy of 94.9 %). What :class:`skebm.RBMEstimator` adds is the likelihood, not shown here.

from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedGroupKFold
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from skebm import RBMEstimator
from skebm.objectives import Penalty

folds = StratifiedGroupKFold(3, shuffle=True, random_state=0)
linear = [("scale", StandardScaler()), ("logistic", LogisticRegression(max_iter=2000))]
rbm = RBMEstimator(n_iter=40, penalty=Penalty(sparsity_target=0.05), random_state=0)
searches = {
    "pixels": GridSearchCV(
        Pipeline(linear), {"logistic__C": [0.01, 0.1, 1, 10, 100]}, cv=folds, n_jobs=1
    ),
    "RBM features": GridSearchCV(
        Pipeline([("rbm", rbm), *linear]),
        {"rbm__n_components": [100, 200], "rbm__learning_rate": [0.1, 0.3, 0.5]},
        cv=folds,
        n_jobs=1,
    ),
}
for name, search in searches.items():
    start = time.perf_counter()
    search.fit(X_train, y_train, groups=digit_of_row)
    settings = ", ".join(f"{k.split('__')[1]} = {v:g}" for k, v in search.best_params_.items())
    print(
        f"{name:13} best of {len(search.cv_results_['params'])}: {settings}; "
        f"cross-validated accuracy {search.best_score_:.1%}; {time.perf_counter() - start:.0f} s"
    )

# %%
# Accuracy on the test pictures
# -----------------------------
# The five copies of a digit are right or wrong together, so the standard errors are those of means
# over digits, not over pictures.


def mean_and_error(per_digit):
    return per_digit.mean(), per_digit.std(ddof=1) / len(per_digit) ** 0.5


accuracy = {
    name: (search.predict(X_test) == y_test).reshape(-1, n_copies).mean(axis=1)
    for name, search in searches.items()
}
n_digits = len(X_test) // n_copies
print(f"Test accuracy, n = {len(X_test)} pictures of {n_digits} digits")
for name, per_digit in accuracy.items():
    mean, error = mean_and_error(per_digit)
    print(f"  {name:13} {mean:6.1%}   standard error {error:.1%}")
gain, error = mean_and_error(accuracy["RBM features"] - accuracy["pixels"])
print(f"  {'gain':13} {gain:+6.1%}   standard error {error:.1%}")

# %%
# What the features are, and which digits gain
# --------------------------------------------

import matplotlib.pyplot as plt

from skebm.inspection import RBMDisplay

figure = plt.figure(figsize=(10, 4.5), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=[1.05, 1])
best_rbm = searches["RBM features"].best_estimator_["rbm"]
RBMDisplay.from_estimator(best_rbm, image_shape=(8, 8), n_samples=0).plot("filters", figure=left)

ax = right.subplots()
kind = y_test[::n_copies]
low, high = ([per_digit[kind == k].mean() for k in range(10)] for per_digit in accuracy.values())
ax.hlines(np.arange(10), low, high, color="0.7", zorder=0)
styles = [("s", "#d55e00"), ("o", "#0b5394")]
for (name, per_digit), values, (marker, colour) in zip(
    accuracy.items(), (low, high), styles, strict=True
):
    label = f"{name} ({per_digit.mean():.1%} overall)"
    ax.scatter(values, np.arange(10), marker=marker, color=colour, label=label)
ax.xaxis.set_major_formatter("{x:.0%}")
ax.set(yticks=np.arange(10), xlabel="accuracy on test pictures", ylabel="digit")
ax.set_title("Logistic regression on pixels and on RBM features")
ax.legend(loc="lower center", bbox_to_anchor=(0.5, -0.32), ncols=2, frameon=False)
ax.invert_yaxis()
ax.spines[["top", "right"]].set_visible(False)
plt.show()
