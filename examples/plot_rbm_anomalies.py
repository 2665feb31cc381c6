"""
Finding anomalies with an RBM
=============================

A restricted Boltzmann machine learns p(x) from normal rows, and a row of low log p(x) is an
anomaly. Here one kind of digit is normal and the other nine are anomalies, for each kind in turn,
against three detectors of scikit-learn.

Protocol: a detector is trained on half of the pictures of the normal kind and sees no anomaly.
It is tested on the other half and on all pictures of the other kinds. The settings are the same
for all ten kinds: usual ones for scikit-learn's detectors; for the RBM those of a short look at
these digits, so its numbers may flatter it a little.
"""

# %%
# Data: ten problems
# ------------------
# An RBM wants binary columns, so each pixel becomes three: is it at least 4, 8, 12 of 16? The other
# detectors get the grey values themselves, which suits them better than the bits.

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

grey, digit = load_digits(return_X_y=True)
bits = np.concatenate([grey >= 4, grey >= 8, grey >= 12], axis=1).astype(float)
splits = []  # for each kind: normal rows to train on, normal rows to test on, anomalies
for kind in range(10):
    train, test = train_test_split(np.flatnonzero(digit == kind), test_size=0.5, random_state=kind)
    splits.append((train, test, np.flatnonzero(digit != kind)))
print(
    f"{bits.shape[1]} bits or {grey.shape[1]} grey values; for each of {len(splits)} kinds about "
    f"{len(splits[0][0])} normal pictures to train on, {len(splits[0][1])} to test on, and "
    f"{len(splits[0][2])} anomalies"
)

# %%
# Four detectors
# --------------
# ``decision_function`` of each is higher for more normal rows. The area under the ROC curve (AUROC)
# is the probability that a normal picture scores higher than an anomaly.

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
    "isolation forest": (IsolationForest(n_estimators=300, random_state=0), grey),
    "local outlier factor": (LocalOutlierFactor(n_neighbors=20, novelty=True), grey),
    "5 nearest neighbours": (KNeighboursDetector(n_neighbors=5), grey),
}
auroc, seconds = {}, {}
for name, (detector, X) in detectors.items():
    start = time.perf_counter()
    auroc[name] = [
        roc_auc_score(
            np.repeat([1, 0], [len(normal), len(anomalies)]),
            detector.fit(X[train]).decision_function(X[np.concatenate([normal, anomalies])]),
        )
        for train, normal, anomalies in splits
    ]
    seconds[name] = time.perf_counter() - start

print("AUROC over ten kinds of normal digit (0.5 is chance, 1 is perfect)")
print(f"  {'':21}   mean  lowest   seconds per kind")
for name, values in auroc.items():
    print(f"  {name:21} {np.mean(values):6.3f} {min(values):7.3f} {seconds[name] / 10:12.3f}")
ranking = sorted(auroc, key=lambda name: -np.mean(auroc[name]))
print("From best to worst: " + ", ".join(ranking) + ".")

# %%
# A threshold
# -----------
# ``predict`` calls a row an outlier when its log-likelihood is below ``offset_``, which a given
# share of the training rows fails to reach. On so few rows that is too strict: the RBM knows them
# in part by heart, and new normal rows are less likely. Where false alarms matter, take the
# threshold from normal rows that were kept out of training.

hardest = int(np.argmin(auroc["RBM"]))
train, normal, anomalies = splits[hardest]
kept_out, new = np.array_split(normal, 2)
rbm.set_params(contamination=0.05).fit(bits[train])
log_p = {
    "trained on": rbm.score_samples(bits[train]),
    "kept out": rbm.score_samples(bits[kept_out]),
    "new normal": rbm.score_samples(bits[new]),
    "anomalies": rbm.score_samples(bits[anomalies]),
}
threshold = np.quantile(log_p["kept out"], 0.05)
print(f"""The kind on which the RBM does worst: {hardest}
                             median     called outliers by a threshold of
               pictures     in nats    {rbm.offset_:.1f} (offset_)   {threshold:.1f} (kept out)""")
for name, values in log_p.items():
    strict, lenient = np.mean(values < rbm.offset_), np.mean(values < threshold)
    print(f"  {name:11} {len(values):9} {np.median(values):12.1f} {strict:16.0%} {lenient:16.0%}")

# %%
# The picture
# -----------

import matplotlib.pyplot as plt

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
styles = dict(zip(auroc, ["o", "^", "v", "s"], strict=True))
colours = dict(zip(auroc, ["#0b5394", "#d55e00", "#009e73", "#cc79a7"], strict=True))
for number, (name, values) in enumerate(auroc.items()):
    place = np.arange(10) + 0.16 * (number - 1.5)  # side by side
    label = f"{name} (mean {np.mean(values):.3f})"
    left.plot(place, values, styles[name], color=colours[name], label=label)
left.set(xticks=range(10), xlabel="kind of digit that is normal", ylabel="AUROC")
left.set_title("Normal digits against the other nine kinds")
left.legend(loc="lower left", fontsize="small")
left.grid(axis="y", alpha=0.3)

shown = {
    f"trained on ({len(train)} pictures)": (log_p["trained on"], "0.6"),
    f"normal, held out ({len(normal)})": (
        np.concatenate([log_p["kept out"], log_p["new normal"]]),
        "#0b5394",
    ),
    f"anomalies ({len(anomalies)})": (log_p["anomalies"], "#d55e00"),
}
edges = np.linspace(min(map(min, log_p.values())), max(map(max, log_p.values())), 50)
for name, (values, colour) in shown.items():
    share = np.full(len(values), 1 / len(values))
    style = {"histtype": "step"} if name.startswith("trained") else {"alpha": 0.6}
    right.hist(values, edges, weights=share, color=colour, label=name, lw=1.5, **style)
right.axvline(rbm.offset_, color="black", ls="--", label="threshold offset_")
right.axvline(threshold, color="black", ls=":", label="threshold from rows kept out")
right.yaxis.set_major_formatter("{x:.0%}")
right.set(xlabel="log p(x) in nats", ylabel="share of the pictures")
right.set_title(f"RBM trained on the digit {hardest}")
right.legend(loc="upper left", fontsize="small")
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)
plt.show()
