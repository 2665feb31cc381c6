"""
RBM of a table with numbers, categories and holes: households
=============================================================

A restricted Boltzmann machine takes a data frame as it is: numbers become
Gaussian units, categories softmax units, zeros and ones Bernoulli units.
Entries may be missing. One fit gives a normalised density, imputations and
anomaly scores.
"""

# %%
# A table like that of a census
# -----------------------------
# The table contains three kinds of households, which differ in every
# column. A tenth of all entries are missing.

import numpy as np
import pandas as pd


def households(n, seed):
    random = np.random.default_rng(seed)
    kind = random.choice(3, n, p=[0.5, 0.3, 0.2])
    home = np.array(["rented", "owned", "shared"])
    work = np.array(["employed", "retired", "student", "none"])
    table = pd.DataFrame(
        {
            "age": np.array([41, 71, 23])[kind]
            + np.array([9, 7, 3])[kind] * random.normal(size=n),
            "rooms": np.array([3.5, 4.5, 2.0])[kind]
            + random.gamma(2, 0.5, n),
            "home": home[
                np.where(
                    random.random(n) < 0.8, kind, random.integers(0, 3, n)
                )
            ],
            "work": work[np.where(random.random(n) < 0.85, kind, 3)],
            "car": random.random(n) < np.array([0.8, 0.6, 0.2])[kind],
        }
    )
    return table, table.mask(random.random(table.shape) < 0.1)


complete, train = households(600, seed=0)
_, new = households(600, seed=1)
print(
    train.head(),
    f"\n\n{train.isna().mean().mean():.0%} of the entries are missing",
)

# %%
# One fit
# -------
# ``score`` is the mean log-likelihood of the known entries of each row.
# With 8 hidden units, log Z and the likelihoods of rows with holes are
# exact.

from skebm import RBMEstimator

rbm = RBMEstimator(8, n_iter=100, batch_size=50, random_state=0).fit(train)
independent = RBMEstimator(
    base="independent", n_iter=0, random_state=0
).fit(train)
print(
    f"held-out nats: {rbm.score(new):.2f}, independent columns {independent.score(new):.2f}"
)
marginal = rbm.log_marginal(new)
print(f"exact: {marginal.exact.all()}; log Z: {rbm.log_partition_method_}")

# %%
# Imputation
# ----------
# ``how="mean"`` fills in a single table; several draws are for multiple
# imputation.

filled = rbm.impute(train, how="mean", random_state=0)
draws = rbm.impute(train, n_draws=5, random_state=0)
lost = train.isna()
age = np.sqrt(np.mean((filled.age - complete.age)[lost.age] ** 2))
print(
    f"age: root mean square error {age:.1f}, standard deviation {complete.age.std():.1f}"
)
for name in ("home", "work", "car"):
    hit = (filled[name] == complete[name])[lost[name]].mean()
    usual = (complete[name] == complete[name].mode()[0])[lost[name]].mean()
    print(f"{name}: {hit:.0%} right, the most frequent value {usual:.0%}")
shares = [np.mean(draw.work == "retired") for draw in draws]
print(
    f"share of retired people: {np.mean(shares):.3f}, by draws {np.round(shares, 3)}"
)

# %%
# Anomalies
# ---------
# The row describes a student of 75 who owns a house: each value is common,
# but their combination is not.

odd = pd.DataFrame(
    {
        "age": [75.0],
        "rooms": [2.5],
        "home": ["owned"],
        "work": ["student"],
        "car": [False],
    }
)
print(
    f"log p of the odd row {rbm.score_samples(odd)[0]:.1f}, "
    f"median {np.median(rbm.score_samples(new)):.1f}, predict: {rbm.predict(odd)[0]}"
)

# %%
# What the model has learnt
# -------------------------
# The histograms show the ages of the training rows and of samples, by
# occupation.

import matplotlib.pyplot as plt

samples = rbm.sample(2000, random_state=0)
figure, axes = plt.subplots(
    1, 3, figsize=(11, 3.4), sharex=True, layout="constrained"
)
for ax, work in zip(axes, ("employed", "retired", "student"), strict=True):
    for table, label, colour in (
        (complete, "rows", "#0b5394"),
        (samples, "samples", "#d55e00"),
    ):
        ages = table.age[table.work == work]
        ax.hist(
            ages,
            np.arange(0, 105, 5),
            density=True,
            histtype="step",
            color=colour,
            label=label,
        )
    ax.set(title=work, xlabel="age", yticks=[])
    ax.spines[["top", "right", "left"]].set_visible(False)
axes[0].legend(frameon=False)
plt.show()
