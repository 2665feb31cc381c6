"""
One model of a table answers five questions
===========================================

A density of wines is fitted once, to rows of which a tenth of the entries
are missing. It then says how likely a wine is, what its color intensity is
given its other columns and how sure that is, how the answer changes with
one column, which wines to expect, and what the missing entries are.
"""

# %%
# The table
# ---------

# sphinx_gallery_thumbnail_number = 1

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine

from skebm import TractableDensity
from skebm.inspection import ConditionalDisplay, PartialDisplay

columns = ["alcohol", "color_intensity", "hue", "proline"]
wines = load_wine(as_frame=True).data[columns]
holes = np.random.default_rng(0).random(wines.shape) < 0.1
known = wines.mask(holes)
model = TractableDensity(random_state=0).fit(known)

# %%
# How likely is what is known of a wine?
# --------------------------------------

print(model.score_samples(known.head(4)).round(2))

# %%
# What is a column, given the others?
# -----------------------------------
# ``conditional`` returns distributions with the methods of SciPy's.

color = model.conditional(known.head(4), "color_intensity")
print(color.mean().round(2), color.std().round(2))

# %%
# How does the answer change with one column?
# -------------------------------------------
# Only alcohol is given here; the other columns are integrated out.

moving = PartialDisplay.from_estimator(
    model,
    "color_intensity",
    "alcohol",
    X=wines,
    quantiles=[0.1, 0.5, 0.9],
)
print(moving.mean[[0, -1]].round(2))

# %%
# Which wines have an alcohol of 14?
# ----------------------------------

drawn = model.sample(200, random_state=0, given={"alcohol": 14.0})

# %%
# What are the missing entries?
# -----------------------------

filled = model.impute(known, how="mean")
hidden = holes[:, 1]
off = filled["color_intensity"] - wines["color_intensity"]
error = off[hidden].std() / wines["color_intensity"].std()
print(f"error of imputed color: {error:.2f} standard deviations")

# %%
# Figure
# ------
# Left: the density of the color of one wine given its other columns, with
# quantiles, and the color that it has. Right: mean, median and 80 % band
# of the color given the alcohol, the wines, and draws at an alcohol of 14.

figure, (left, right) = plt.subplots(
    1, 2, figsize=(8, 3.4), layout="constrained"
)
ConditionalDisplay.from_estimator(
    model, wines.iloc[[0]], "color_intensity", ax=left
)
moving.plot(right)
right.scatter(np.full(200, 14.0), drawn[:, 1], s=8, alpha=0.5)
plt.show()
