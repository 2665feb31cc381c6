"""
Hopfield memories of digits: recall by four rules
=================================================

A Hopfield network stores rows and recalls them from corrupted ones:
starting at the corrupted row, bits are flipped as long as that lowers an
energy whose low points are the stored rows. How many rows can be stored,
and how similar they may be, depends on the rule. Digits are much more
similar to each other than the random patterns for which the capacities of
the rules are known.
"""

# %%
# Ten digits are stored
# ---------------------
# The digits are stored as bits, which are 1 where the ink is strong. For
# the recall, 15 % of the bits of every image are flipped, and in the last
# five images the lower half is empty. ``fit`` warns of what the rule of
# Hebb cannot hold.

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC

from skebm import HopfieldMemory

X, y = load_digits(return_X_y=True)
X = (X > 7).astype(float)
patterns = X[:10]  # one of each class
random = np.random.default_rng(0)


def with_flips(rows, share):
    """Rows of which a share of the bits is flipped."""
    return np.abs(rows - (random.random(rows.shape) < share))


corrupted = with_flips(patterns, 0.15)
corrupted[5:, 32:] = 0
memories = {
    rule: HopfieldMemory(rule, random_state=0)
    for rule in ("hebb", "pseudoinverse", "dense")
}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    recalled = {
        rule: memory.fit(patterns).transform(corrupted)
        for rule, memory in memories.items()
    }
for warning in caught:
    print(f"warning: {warning.message}")
for rule, memory in memories.items():
    print(
        f"{rule:13} mean overlap with the digits {memory.score(corrupted, patterns):.2f}"
    )

# %%
# Hebb's rule recalls mixtures of the digits. The pseudo-inverse and the
# dense rule undo the flips; the dense rule recalls more of the digits
# without a lower half.

shown = {"stored": patterns, "corrupted": corrupted, **recalled}
figure, axes = plt.subplots(
    len(shown), 10, figsize=(9, 5), layout="constrained"
)
for line, (name, rows) in zip(axes, shown.items(), strict=True):
    for ax, row, clean in zip(line, rows, patterns, strict=True):
        # Wrong bits are orange: ink that should not be there, pale where ink is missing.
        wrong = row != clean
        image = np.where(
            row[:, None] == 1, [0.05, 0.24, 0.43], [1.0, 1.0, 1.0]
        )
        image[wrong & (row == 1)] = [0.84, 0.37, 0.0]
        image[wrong & (row == 0)] = [1.0, 0.85, 0.65]
        ax.imshow(image.reshape(8, 8, 3))
        ax.set(xticks=[], yticks=[])
    line[0].set_ylabel(name, rotation=0, ha="right", va="center")
figure.suptitle(
    "Ten digits in memory; wrong bits in orange, pale where ink is missing"
)
plt.show()

# %%
# As many as one likes
# --------------------
# The more digits are stored, the less the rules with couplings recall of
# them. Below the dashed line, a recall adds more errors than it corrects.
# The dense rule, the default, keeps hundreds.

sizes = [5, 10, 20, 50, 100, 300, 1000]
order = np.random.default_rng(1).permutation(len(X))
curves = {
    rule: [] for rule in ("hebb", "storkey", "pseudoinverse", "dense")
}
start = []
for n in sizes:
    stored = X[order[:n]]
    rows = with_flips(stored[:200], 0.1)
    start.append(1 - 2 * np.abs(rows - stored[:200]).mean())
    for rule, found in curves.items():
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", UserWarning
            )  # that digits are too similar
            found.append(
                HopfieldMemory(rule, random_state=0)
                .fit(stored)
                .score(rows, stored[:200])
            )
figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for (rule, found), colour in zip(
    curves.items(),
    ("#cc79a7", "#e69f00", "#56b4e9", "#0b5394"),
    strict=True,
):
    ax.plot(sizes, found, "o-", color=colour, label=rule)
ax.plot(sizes, start, "k--", label="before the recall")
ax.set(
    xscale="log",
    xlabel="stored digits of 64 bits",
    ylabel="mean overlap with the digit",
)
ax.set_title("Recall from 10 % flipped bits")
ax.legend(frameon=False)
ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# Before a classifier
# -------------------
# Classifiers that were fitted to clean digits are applied to noisy ones. In
# a pipeline, the memory replaces a noisy digit by what it recalls: usually
# the digit itself if it is a training digit, and a similar training digit
# if it is new. With a memory, a logistic regression and an SVM classify
# many more training digits correctly, but not more new digits: what is
# recalled may be of another class, and an SVM alone is better. Nor does a
# memory help nearest neighbours, which search the training digits anyway.

X_train, X_test, y_train, y_test = train_test_split(
    X, y, test_size=0.25, stratify=y, random_state=0
)
noisy_train, noisy_test = with_flips(X_train, 0.1), with_flips(X_test, 0.1)
classifiers = {
    "logistic regression": LogisticRegression(max_iter=1000),
    "SVM": SVC(),
    "nearest neighbour": KNeighborsClassifier(1),
}
print(
    f"Accuracy with 10 % flipped bits; {len(X_train)} training and {len(X_test)} new digits"
)
for name, classifier in classifiers.items():
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UserWarning
        )  # a few of the training digits are too similar
        pipeline = make_pipeline(
            HopfieldMemory(random_state=0), classifier
        ).fit(X_train, y_train)
    alone = pipeline[
        -1
    ]  # fitted to the training digits, which the memory keeps
    for kind, rows, labels in (
        ("training digits", noisy_train, y_train),
        ("new digits", noisy_test, y_test),
    ):
        right = [
            model.predict(rows) == labels for model in (alone, pipeline)
        ]
        change = right[1].astype(float) - right[0]
        error = change.std() / len(change) ** 0.5
        before, after = right[0].mean(), right[1].mean()
        print(
            f"  {name:20} {kind:16} alone {before:.1%}, with a memory {after:.1%} "
            f"(change {change.mean():+.1%}, standard error {error:.1%})"
        )
