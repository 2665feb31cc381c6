"""
Detector of a frame with text, dates, ids and holes: orders
===========================================================

``EnergyOutlierDetector()`` takes a frame as a file gives it, with numbers,
booleans, dates, categories of few and of many levels, ids and missing
entries. It says what it made of each column, and explains which column
makes a row anomalous.

Data: simulated orders of a shop. Large orders come from firms, which rarely
order by express; prices increase with the weight. Some of the hundreds of
towns are much more common than others. Four kinds of errors are planted in
new orders.
"""

# %%
# Orders with holes
# -----------------

# sphinx_gallery_thumbnail_number = 1

import textwrap

import numpy as np
import pandas as pd

from skebm import EnergyOutlierDetector


def orders(n, seed):
    """Orders without errors, a tenth of two columns missing."""
    random = np.random.default_rng(seed)
    firm = random.random(n) < 0.3
    weight = np.where(firm, 40, 4) * random.lognormal(0, 0.2, n)
    days = pd.to_timedelta(random.integers(0, 180, n), "D")
    express = random.random(n) < np.where(firm, 0.1, 0.4)
    on_the_way = pd.to_timedelta(
        np.where(express, 1, 3 + random.poisson(2, n)), "D"
    )
    frame = pd.DataFrame(
        {
            "id": [f"{seed}-{k:05}" for k in random.permutation(n)],
            "customer": np.where(firm, "firm", "person"),
            "town": [
                f"town {k}" for k in np.minimum(random.zipf(1.6, n), 400)
            ],
            "express": express,
            "ordered": pd.Timestamp("2025-01-06") + days,
            "delivered": pd.Timestamp("2025-01-06") + days + on_the_way,
            "weight": weight.round(1),
            "price": (5 + 3 * weight * random.lognormal(0, 0.1, n)).round(
                2
            ),
        }
    )
    for column in ("customer", "weight"):
        frame.loc[random.random(n) < 0.1, column] = None
    return frame


train, new = orders(1000, seed=0), orders(300, seed=1)
print(train.drop(columns="express").head().to_string(index=False))

# %%
# What becomes of the columns
# ---------------------------
# The first step of the detector makes numbers of the columns. Its attribute
# ``columns_`` says of each what it made and why: a category of many levels
# is described by the rarity of a level, two dates by the days between them
# as well, and ids are left out. It is a frame, which a notebook shows.

detector = EnergyOutlierDetector(
    method="conformal", contamination=0.05, random_state=0
).fit(train)
columns = detector.estimator_[0].columns_
for _, column in columns.iterrows():
    text = f"{column['column']:10} {column['kind']}: {column['becomes']}"
    print(textwrap.fill(text, 76, subsequent_indent=11 * " "))

# %%
# Planted errors
# --------------
# The errors are prices of firms at weights of persons, dates of orders that
# are a year off, deliveries before the order, and customers of a kind
# that does not exist. A level that did not occur in ``fit`` makes a row an
# outlier and raises no exception.

new.loc[:9, ["price", "weight"]] = 400.0, 4.0
new.loc[10:19, "ordered"] -= pd.Timedelta(days=365)
new.loc[20:29, "delivered"] = new["ordered"] - pd.Timedelta(days=2)
new.loc[30:39, "customer"] = "ghost"
flagged = detector.predict(new) == -1
kinds = {"price": 0, "order date": 10, "delivery": 20, "customer": 30}
for kind, first in kinds.items():
    share = flagged[first : first + 10].mean()
    print(f"flagged of the errors in {kind:10} {share:6.0%}")
print(f"flagged of the other orders     {flagged[40:].mean():8.1%}")

# %%
# Which column
# ------------
# One row of each kind of error is explained. Next to a bar are the value in
# the row and the value that the model expects given the other columns of
# that row.

import matplotlib.pyplot as plt

from skebm.inspection import ExplanationDisplay

rows = new.iloc[[0, 10, 20, 30]]
reasons = detector.explain(rows).to_frame(1)
print(reasons[["feature", "value", "expected"]].to_string(index=False))

figure, axes = plt.subplots(2, 2, figsize=(8, 4.6))
ExplanationDisplay.from_estimator(detector, rows, n_features=3).plot(axes)
plt.show()
