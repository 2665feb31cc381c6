"""
Default detector on a frame with text, dates and holes: orders
==============================================================

``EnergyOutlierDetector()`` takes a frame with numbers, text, booleans,
dates and missing entries, and explains which column makes a row anomalous.

Data: simulated orders of a shop. Large orders come from firms, which rarely
order by express; prices increase with the weight. Three kinds of errors are
planted in new orders.
"""

# %%
# Orders with holes
# -----------------

import numpy as np
import pandas as pd

from skebm import EnergyOutlierDetector


def orders(n, seed):
    """Orders without errors, a tenth of two columns missing."""
    random = np.random.default_rng(seed)
    firm = random.random(n) < 0.3
    weight = np.where(firm, 40, 4) * random.lognormal(0, 0.2, n)
    frame = pd.DataFrame(
        {
            "customer": np.where(firm, "firm", "person"),
            "country": random.choice(
                ["FR", "IT", "DE"], n, p=[0.5, 0.3, 0.2]
            ),
            "express": random.random(n) < np.where(firm, 0.1, 0.4),
            "ordered": pd.Timestamp("2025-01-06")
            + pd.to_timedelta(random.integers(0, 180, n), "D"),
            "weight": weight,
            "price": 5 + 3 * weight * random.lognormal(0, 0.1, n),
        }
    )
    for column in ("country", "weight"):
        frame.loc[random.random(n) < 0.1, column] = None
    return frame


train, new = orders(1000, seed=0), orders(300, seed=1)
print(train.head().to_string(index=False))

# %%
# Planted errors
# --------------
# The errors are prices of firms at weights of persons, dates that are
# twenty years off, and a country from which nobody had ordered. A level
# that did not occur in `fit` makes a row an outlier and raises no
# exception.

new.loc[:9, ["price", "weight"]] = 400.0, 4.0
new.loc[10:19, "ordered"] -= pd.Timedelta(days=7300)
new.loc[20:29, "country"] = "XX"
detector = EnergyOutlierDetector(
    method="conformal", contamination=0.05, random_state=0
).fit(train)
flagged = detector.predict(new) == -1
print(
    f"flagged {flagged[:30].mean():.0%} of the errors, {flagged[30:].mean():.1%} of the others"
)

# %%
# Which column
# ------------
# One row of each kind of error is explained. Next to a bar are the value in
# the row and the value that the model expects given the other columns of
# that row.

import matplotlib.pyplot as plt

from skebm.inspection import ExplanationDisplay

rows = new.iloc[[0, 10, 20]]
print(
    detector.explain(rows)
    .to_frame(1)[["feature", "value", "expected"]]
    .to_string(index=False)
)

figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
ExplanationDisplay.from_estimator(detector, rows, n_features=4).plot(axes)
plt.show()
