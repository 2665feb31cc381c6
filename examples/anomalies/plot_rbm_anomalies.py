"""
Anomaly detection with an RBM: one digit against nine
=====================================================

A restricted Boltzmann machine models p(x) of normal rows, and rows of low
log p(x) are anomalies. Here each class of digits in turn is normal and the
other nine are anomalies, and the RBM is compared with three detectors of
scikit-learn.

Protocol: a detector is trained on half of the images of the normal class,
without anomalies. It is tested on the other half and on all images of the
other classes. The settings are the same for all ten classes. Those of
scikit-learn's detectors are common ones; those of the RBM were found by a
few trials on these digits, so its results may be slightly optimistic.
"""

# %%
# Data: ten problems
# ------------------
# An RBM needs binary columns, so each pixel becomes three: whether it is at
# least 4, 8, 12 of 16. The other detectors get the grey values, on which
# they are better than on the bits.

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

grey, digit = load_digits(return_X_y=True)
bits = np.concatenate([grey >= 4, grey >= 8, grey >= 12], axis=1).astype(
    float
)
splits = []  # for each class: normal rows for training, normal rows for testing, anomalies
for kind in range(10):
    train, test = train_test_split(
        np.flatnonzero(digit == kind), test_size=0.5, random_state=kind
    )
    splits.append((train, test, np.flatnonzero(digit != kind)))
print(
    f"{bits.shape[1]} bits or {grey.shape[1]} grey values; for each of {len(splits)} classes about "
    f"{len(splits[0][0])} normal images for training, {len(splits[0][1])} for testing, and "
    f"{len(splits[0][2])} anomalies"
)

# %%
# Four detectors
# --------------
# The ``decision_function`` of each is higher for more normal rows. The area
# under the ROC curve (AUROC) is the probability that a normal image scores
# higher than an anomaly.

import time

from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors

from skebm import RBMEstimator


class KNeighboursDetector(NearestNeighbors):
    """Minus the mean distance to the nearest training rows."""

    def decision_function(self, X):
        return -self.kneighbors(X)[0].mean(axis=1)


rbm = RBMEstimator(n_components=64, n_iter=200, random_state=0)
detectors = {
    "RBM": (rbm, bits),
    "isolation forest": (
        IsolationForest(n_estimators=300, random_state=0),
        grey,
    ),
    "local outlier factor": (
        LocalOutlierFactor(n_neighbors=20, novelty=True),
        grey,
    ),
    "5 nearest neighbours": (KNeighboursDetector(n_neighbors=5), grey),
}
auroc, seconds = {}, {}
for name, (detector, X) in detectors.items():
    start = time.perf_counter()
    auroc[name] = [
        roc_auc_score(
            np.repeat([1, 0], [len(normal), len(anomalies)]),
            detector.fit(X[train]).decision_function(
                X[np.concatenate([normal, anomalies])]
            ),
        )
        for train, normal, anomalies in splits
    ]
    seconds[name] = time.perf_counter() - start

print("AUROC over ten normal classes (0.5 is chance, 1 is perfect)")
print(f"  {'':21}   mean  lowest   seconds per class")
for name, values in auroc.items():
    print(
        f"  {name:21} {np.mean(values):6.3f} {min(values):7.3f} {seconds[name] / 10:12.3f}"
    )
ranking = sorted(auroc, key=lambda name: -np.mean(auroc[name]))
print("From best to worst: " + ", ".join(ranking) + ".")

# %%
# Thresholds
# ----------
# ``predict`` of an RBM flags a row whose log-likelihood is below a quantile
# of that of the training rows. With so few training rows it flags too many
# new ones, because the RBM overfits and new normal rows are less likely
# than training rows. A conformal threshold is a quantile over held-out
# normal rows. ``"cross-conformal"`` holds out each fifth in turn, so that
# every row is used for both training and calibration.

from skebm import EnergyOutlierDetector

hardest = int(np.argmin(auroc["RBM"]))
train, normal, anomalies = splits[hardest]
print(f"""Fraction flagged, for the class on which the RBM has the lowest AUROC: {hardest}
                     {len(normal)} normal images   {len(anomalies)} anomalies""")
for method in ("quantile", "conformal", "cross-conformal"):
    detector = EnergyOutlierDetector(
        rbm, method=method, contamination=0.05, random_state=0
    )
    detector.fit(bits[train])
    flagged = [
        np.mean(detector.predict(bits[rows]) == -1)
        for rows in (normal, anomalies)
    ]
    print(f"  {method:16} {flagged[0]:17.0%} {flagged[1]:15.0%}")

# %%
# AUROC of each class, and a threshold
# ------------------------------------
# The right panel shows minus the decision function of the cross-conformal
# detector: rows to the right of the threshold are flagged.

import matplotlib.pyplot as plt

from skebm.inspection import EnergyHistogramDisplay

figure, (left, right) = plt.subplots(
    1, 2, figsize=(11, 4.2), layout="constrained"
)
styles = dict(zip(auroc, ["o", "^", "v", "s"], strict=True))
colours = dict(
    zip(auroc, ["#0b5394", "#d55e00", "#009e73", "#cc79a7"], strict=True)
)
for number, (name, values) in enumerate(auroc.items()):
    place = np.arange(10) + 0.16 * (number - 1.5)  # side by side
    label = f"{name} (mean {np.mean(values):.3f})"
    left.plot(place, values, styles[name], color=colours[name], label=label)
left.set(xticks=range(10), xlabel="normal class", ylabel="AUROC")
left.set_title("One class of digits against the other nine")
left.legend(loc="lower left", fontsize="small")
left.grid(axis="y", alpha=0.3)
left.spines[["top", "right"]].set_visible(False)
EnergyHistogramDisplay.from_estimator(
    detector, bits[normal], bits[anomalies]
).plot(right)
plt.show()
