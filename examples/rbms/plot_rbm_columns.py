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

# sphinx_gallery_thumbnail_number = 1

import numpy as np
import pandas as pd


def households(n, seed):
    random = np.random.default_rng(seed)
    kind = random.choice(3, n, p=[0.5, 0.3, 0.2])
    home = np.array(["rented", "owned", "shared"])
    work = np.array(["employed", "retired", "student", "none"])
    at_home = np.where(
        random.random(n) < 0.8, kind, random.integers(0, 3, n)
    )
    at_work = np.where(random.random(n) < 0.85, kind, 3)
    table = pd.DataFrame(
        {
            "age": random.normal(np.array([44, 71, 23])[kind], 6),
            "rooms": random.normal(np.array([4, 5, 2.5])[kind], 0.8),
            "home": home[at_home],
            "work": work[at_work],
            "car": random.random(n) < np.array([0.8, 0.6, 0.2])[kind],
        }
    )
    return table, table.mask(random.random(table.shape) < 0.1)


complete, train = households(600, seed=0)
_, new = households(600, seed=1)
print(train.head())
print(f"{train.isna().mean().mean():.0%} of the entries are missing")

# %%
# One fit
# -------
# ``score`` is the mean log-likelihood of the known entries of each row.
# With 8 hidden units, log Z and the likelihoods of rows with holes are
# exact.

from skebm import RBMEstimator

rbm = RBMEstimator(8, n_iter=300, batch_size=50, random_state=0).fit(train)
independent = RBMEstimator(
    base="independent", n_iter=0, random_state=0
).fit(train)
print("mean log-likelihood of new rows, in nats")
print(f"  RBM                 {rbm.score(new):.2f}")
print(f"  independent columns {independent.score(new):.2f}")
print(f"exact: {rbm.log_marginal(new).exact.all()}")

# %%
# Imputation
# ----------
# ``how="mean"`` fills in a single table; several draws are for multiple
# imputation.

filled = rbm.impute(train, how="mean", random_state=0)
draws = rbm.impute(train, n_draws=5, random_state=0)
lost = train.isna()
error = np.sqrt(np.mean((filled.age - complete.age)[lost.age] ** 2))
print(f"age: root mean square error {error:.1f} years")
print(f"     standard deviation     {complete.age.std():.1f} years")
for name in ("home", "work", "car"):
    hit = (filled[name] == complete[name])[lost[name]].mean()
    usual = (complete[name] == complete[name].mode()[0])[lost[name]].mean()
    print(f"{name}: {hit:.0%} right, the most frequent value {usual:.0%}")
shares = [np.mean(draw.work == "retired") for draw in draws]
print(f"share of retired people, by draws: {np.round(shares, 3)}")

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
print(f"log p of the odd row {rbm.score_samples(odd)[0]:.1f} nats")
print(f"median of new rows   {np.median(rbm.score_samples(new)):.1f} nats")
print(f"predict: {rbm.predict(odd)[0]}")

# %%
# What the model has learnt
# -------------------------
# The histograms show the ages of the training rows and of samples, by
# occupation.

import matplotlib.pyplot as plt

samples = rbm.sample(2000, random_state=0)
kinds = ("employed", "retired", "student")
figure, axes = plt.subplots(1, 3, figsize=(7.5, 2.6), sharex=True)
for ax, work in zip(axes, kinds, strict=True):
    for table, label in ((complete, "rows"), (samples, "samples")):
        ages = table.age[table.work == work]
        ax.hist(
            ages,
            np.arange(0, 105, 5),
            density=True,
            histtype="step",
            linewidth=1.5,
            label=label,
        )
    ax.set(title=work, xlabel="age, years", yticks=[])
    ax.set(xlim=(0, 100), xticks=[20, 40, 60, 80])
axes[0].set_ylabel("density")
axes[1].legend(loc="upper left")
plt.show()
