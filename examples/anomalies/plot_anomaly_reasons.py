"""
Conformal anomaly detection with reasons: breast tumours
========================================================

A density of normal rows ranks new ones, conformal p-values bound the rate
of false alarms, and conditional densities explain which columns make a
row anomalous.

Data: 569 breast tumours, each described by 30 measurements of the cell
nuclei in an image (Wolberg, Street and Mangasarian 1995, bundled with
scikit-learn). Benign tumours are the normal rows. Malignant ones serve only
to evaluate the detector; nothing is fitted to or tuned on them.
"""

# %%
# Normal training rows, and a batch of new rows
# ---------------------------------------------

# sphinx_gallery_thumbnail_number = 1

import pandas as pd
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

X, y = load_breast_cancer(return_X_y=True, as_frame=True)
normal, later = train_test_split(X[y == 1], train_size=250, random_state=0)
batch = pd.concat([later, X[y == 0].sample(40, random_state=0)])
malignant = y[batch.index] == 0
print(f"{len(normal)} normal rows to train on")
print(f"{len(batch)} new rows, {malignant.sum()} of them malignant")

# %%
# Conformal and quantile thresholds
# ---------------------------------
# The detector takes any density, here a Gaussian with full covariance. Half
# of the rows are held out to set the threshold: new benign rows are flagged
# at a rate of at most 5 %, whether or not the rows are Gaussian.
# ``method="quantile"``, the threshold of scikit-learn's own detectors,
# guarantees nothing for new rows; a flexible density shows why.

from sklearn.mixture import GaussianMixture
from sklearn.neighbors import KernelDensity
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skebm import EnergyOutlierDetector

densities = {
    "Gaussian": make_pipeline(
        StandardScaler(), GaussianMixture(reg_covar=1e-3, random_state=0)
    ),
    "kernels": make_pipeline(
        StandardScaler(), KernelDensity(bandwidth=1.0)
    ),
}
print("fraction flagged             benign  malignant")
for name, density in densities.items():
    for method in ("quantile", "conformal", "cross-conformal"):
        detector = EnergyOutlierDetector(
            density, method=method, contamination=0.05, random_state=0
        ).fit(normal)
        flagged = detector.predict(batch) == -1
        print(
            f"{name:9} {method:16} {flagged[~malignant].mean():8.0%}"
            f" {flagged[malignant].mean():10.0%}"
        )

# %%
# Selection at a false discovery rate
# -----------------------------------
# The p-value of a row is the fraction of held-out normal rows that are at
# least as anomalous. From a batch, rows with small p-values are selected so
# that at most a tenth of those selected are expected to be normal.

detector = EnergyOutlierDetector(
    densities["Gaussian"],
    method="conformal",
    contamination=0.05,
    random_state=0,
).fit(normal)
selected = detector.select(batch, fdr=0.1)
print(f"calibration rows:       {detector.n_calibration_}")
print(f"proven rate of alarms:  {detector.false_alarm_bound_:.3f}")
print(f"selected rows:          {selected.sum()} of {len(batch)}")
print(f"  of them benign:       {(selected & ~malignant).sum()}")
print(f"malignant and missed:   {(~selected & malignant).sum()}")

# %%
# Explanations by column
# ----------------------
# The contribution of a column is the evidence, in nats, that its entry is
# wrong: how much less likely it is given the other 29 than a wrong one
# would be. The table also contains the value in the row and the value
# expected given the other columns, in the units of the frame. A value can
# be anomalous without being extreme: it is enough that it contradicts the
# others.

flagged = batch[selected].iloc[[0, 5, 10]]
explained = detector.explain(flagged).to_frame(3)
explained["row"] = flagged.index[explained["row"]]
print(explained.round(3).to_string(index=False))

# %%
# The same in words:

for sentence in detector.explain(flagged).sentences():
    print(sentence)

# %%
# The same for two of the rows as a display:

import matplotlib.pyplot as plt

from skebm.inspection import ExplanationDisplay

figure, axes = plt.subplots(1, 2, figsize=(8, 3))
ExplanationDisplay.from_estimator(
    detector, flagged[1:3], n_features=5
).plot(axes)
plt.show()

# %%
# Energies and p-values
# ---------------------
# The left panel shows the energies of benign and malignant rows with the
# threshold, the right one the calibration of the p-values of new benign
# rows.

from skebm.inspection import EnergyHistogramDisplay, PValueDisplay

figure, axes = plt.subplots(1, 2, figsize=(8, 3.6))
EnergyHistogramDisplay.from_estimator(
    detector,
    batch[~malignant],
    batch[malignant],
    names=("benign", "malignant"),
).plot(axes[0])
PValueDisplay.from_estimator(detector, later).plot(axes[1])
plt.show()
