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
# five images the lower half is empty. Of the rules with couplings, that of
# the pseudo-inverse can hold similar patterns; the dense rule, the default,
# has no couplings.

# sphinx_gallery_thumbnail_number = 1

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
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
shown = {"stored": patterns, "corrupted": corrupted}
for rule in ("pseudoinverse", "dense"):
    memory = HopfieldMemory(rule, random_state=0).fit(patterns)
    shown[rule] = memory.transform(corrupted)
    overlap = memory.score(corrupted, patterns)
    print(f"{rule:13} mean overlap with the digits {overlap:.2f}")

# %%
# Both undo the flips; the dense rule recalls more of the digits without a
# lower half. Wrong bits are orange, pale where ink is missing.

colours = ListedColormap(["white", "C0", "C1", "moccasin"])
figure, axes = plt.subplots(len(shown), 10, figsize=(7.5, 3.2))
for line, (name, rows) in zip(axes, shown.items(), strict=True):
    for ax, row, clean in zip(line, rows, patterns, strict=True):
        kind = np.where(row == clean, row, 3 - row)
        ax.imshow(kind.reshape(8, 8), cmap=colours, vmin=0, vmax=3)
        ax.set(xticks=[], yticks=[], frame_on=False)
    line[0].set_ylabel(name, rotation=0, ha="right", va="center")
plt.show()

# %%
# How many patterns
# -----------------
# Random patterns of 64 bits are stored, up to the limit of each rule, above
# which ``fit`` warns. An overlap of 1 is a perfect recall from 10 %
# flipped bits, which themselves have 0.8. Hebb's rule holds eight patterns,
# those of Storkey and of the pseudo-inverse a few more, and the dense rule
# thousands.
# Digits are similar to each other, so that fewer of them can be stored.

sizes = {
    "hebb": [2, 4, 8],
    "storkey": [2, 4, 8, 16, 22],
    "pseudoinverse": [2, 4, 8, 16, 30],
    "dense": [2, 4, 8, 16, 30, 100, 300],
}
bits = (random.random((300, 64)) < 0.5).astype(float)
kinds = {"random patterns": bits, "digits": random.permutation(X)[:300]}
figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.2), sharey=True)
for ax, (kind, rows) in zip(axes, kinds.items(), strict=True):
    for k, (rule, numbers) in enumerate(sizes.items()):
        if kind == "digits" and rule in ("hebb", "storkey"):
            continue
        overlaps = [
            HopfieldMemory(rule, random_state=0)
            .fit(rows[:n])
            .score(with_flips(rows[:n], 0.1), rows[:n])
            for n in numbers
        ]
        ax.plot(numbers, overlaps, "o-", color=f"C{3 - k}", label=rule)
    ax.axhline(0.8, color="0.5", linestyle="--", linewidth=1)
    ax.set(xscale="log", xlabel="stored patterns of 64 bits", title=kind)
axes[0].set_ylabel("mean overlap after the recall")
axes[0].text(300, 0.805, "before the recall", ha="right", color="0.4")
axes[0].legend(loc="center right")
plt.show()

# %%
# Before a classifier
# -------------------
# Classifiers that were fitted to clean digits are applied to noisy ones. In
# a pipeline, the memory replaces a noisy digit by what it recalls: usually
# the digit itself if it is a training digit, and a similar training digit
# if it is new. With a memory, a logistic regression and an SVM classify
# more training digits correctly; new digits are recalled as training
# digits, sometimes of another class. A memory does not help nearest
# neighbours, which search the training digits anyway.

X_train, y_train, X_test, y_test = X[:300], y[:300], X[300:], y[300:]
noisy = {
    "training digits": (with_flips(X_train, 0.1), y_train),
    "new digits": (with_flips(X_test, 0.1), y_test),
}
classifiers = {
    "logistic regression": LogisticRegression(max_iter=1000),
    "SVM": SVC(),
    "nearest neighbour": KNeighborsClassifier(1),
}
print("accuracy with 10 % flipped bits, alone and with a memory; the error")
print("is that of their difference")
for name, classifier in classifiers.items():
    memory = HopfieldMemory(random_state=0)
    pipeline = make_pipeline(memory, classifier).fit(X_train, y_train)
    # The last step was fitted to training digits, which the memory keeps.
    alone = pipeline[-1]
    for kind, (rows, labels) in noisy.items():
        before = alone.predict(rows) == labels
        after = pipeline.predict(rows) == labels
        error = (after * 1.0 - before).std() / len(labels) ** 0.5
        print(
            f"  {name:20} {kind:16} {before.mean():6.1%}"
            f" {after.mean():7.1%}   error {error:.1%}"
        )
