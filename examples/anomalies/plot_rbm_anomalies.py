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

# sphinx_gallery_thumbnail_number = 1

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

grey, digit = load_digits(return_X_y=True)
bits = np.concatenate([grey >= level for level in (4, 8, 12)], axis=1)
bits = bits.astype(float)
splits = []  # of each class: training rows, normal test rows, anomalies
for kind in range(10):
    rows, others = (
        np.flatnonzero(digit == kind),
        np.flatnonzero(digit != kind),
    )
    train, test = train_test_split(rows, test_size=0.5, random_state=kind)
    splits.append((train, test, others))
sizes = [len(rows) for rows in splits[0]]
print("rows for training, normal and anomalous rows for testing:", sizes)

# %%
# Four detectors
# --------------
# The ``decision_function`` of each is higher for more normal rows. The area
# under the ROC curve (AUROC) is the probability that a normal image scores
# higher than an anomaly.

from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors

from skebm import RBMEstimator


class KNeighboursDetector(NearestNeighbors):
    """Minus the mean distance to the nearest training rows."""

    def decision_function(self, X):
        return -self.kneighbors(X)[0].mean(axis=1)


rbm = RBMEstimator(n_components=64, n_iter=150, random_state=0)
forest = IsolationForest(n_estimators=200, random_state=0)
factor = LocalOutlierFactor(n_neighbors=20, novelty=True)
detectors = {
    "RBM": (rbm, bits),
    "isolation forest": (forest, grey),
    "local outlier factor": (factor, grey),
    "5 nearest neighbours": (KNeighboursDetector(n_neighbors=5), grey),
}
auroc = {name: [] for name in detectors}
for name, (detector, X) in detectors.items():
    for train, normal, anomalies in splits:
        detector.fit(X[train])
        score = detector.decision_function(X[np.append(normal, anomalies)])
        is_normal = np.repeat([1, 0], [len(normal), len(anomalies)])
        auroc[name].append(roc_auc_score(is_normal, score))

print("AUROC over ten normal classes (0.5 is chance, 1 is perfect)")
print(f"  {'':21}   mean  lowest")
for name, values in auroc.items():
    print(f"  {name:21} {np.mean(values):6.3f} {min(values):7.3f}")

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
print(f"fraction flagged, class {hardest}   normal   anomalies")
for method in ("quantile", "conformal", "cross-conformal"):
    detector = EnergyOutlierDetector(
        rbm, method=method, contamination=0.05, random_state=0
    ).fit(bits[train])
    flagged = [
        np.mean(detector.predict(bits[rows]) == -1)
        for rows in (normal, anomalies)
    ]
    print(f"  {method:16} {flagged[0]:17.0%} {flagged[1]:11.0%}")

# %%
# AUROC of each class, and a threshold
# ------------------------------------
# The left panel shows that no detector is best on all classes. The right
# panel shows minus the decision function of the cross-conformal
# detector: rows to the right of the threshold are flagged.

import matplotlib.pyplot as plt

from skebm.inspection import EnergyHistogramDisplay

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.6))
for number, (name, values) in enumerate(auroc.items()):
    place = np.arange(10) + 0.16 * (number - 1.5)  # side by side
    left.plot(place, values, "o^vs"[number], label=name)
left.set(xticks=range(10), xlabel="normal class", ylabel="AUROC")
left.set_title("one class against the other nine")
left.legend(loc="lower left")
left.grid(axis="y")
EnergyHistogramDisplay.from_estimator(
    detector, bits[normal], bits[anomalies]
).plot(right)
plt.show()
