"""
Searching over samplers
=======================

The negatives of an energy-based model come from a sampler, so which one, and with what step, is a
hyper-parameter like any other. Samplers are configuration objects with ``get_params``: a grid may
hold whole samplers, or reach into one by ``sampler__step_size``.
"""

# %%
# A pipeline from counts to a density
# -----------------------------------
# Word counts are made binary, and a restricted Boltzmann machine is trained by persistent chains.
# Gibbs sampling is what such a machine calls for, so it sets the mark; the samplers that follow
# gradients know nothing of its two layers, and would do for any differentiable energy of binary
# rows. Every one of them makes five steps a batch.

import pandas as pd
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import Binarizer

from skebm import RBMEstimator
from skebm.samplers import DiscreteLangevin, Gibbs, GibbsWithGradients, Persistent

X_train, X_test = train_test_split(load_digits().data, test_size=0.3, random_state=0)
rbm = RBMEstimator(
    16,
    chains=Persistent(n_steps=5),
    n_iter=10,
    learning_rate=0.05,
    batch_size=50,
    random_state=0,
)
pipeline = Pipeline([("binary", Binarizer(threshold=7)), ("rbm", rbm)])

# %%
# The grid
# --------
# A list of grids searches the sampler's *class* and, for the class that has one, its step. Scores
# are mean log-likelihoods of held-out rows, exact here: with 16 hidden units log Z is a sum.

grid = [
    {"rbm__sampler": [Gibbs(), GibbsWithGradients(), DiscreteLangevin(adapt=True)]},
    {"rbm__sampler": [DiscreteLangevin()], "rbm__sampler__step_size": [0.1, 0.3, 1.0]},
    {
        "rbm__sampler": [DiscreteLangevin(adjust=False)],  # biased: it accepts everything
        "rbm__sampler__step_size": [0.1, 0.3, 1.0],
    },
]
search = GridSearchCV(pipeline, grid, cv=3).fit(X_train)

# %%
# What the samplers are worth
# ---------------------------

import matplotlib.pyplot as plt

results = pd.DataFrame(search.cv_results_)
names = [
    f"{params['rbm__sampler']}".replace("()", "")
    + (f", step {params['rbm__sampler__step_size']}" if len(params) > 1 else "")
    for params in results["params"]
]
table = pd.DataFrame(
    {
        "sampler": names,
        "log-likelihood": results["mean_test_score"],
        "std. error": results["std_test_score"] / 3**0.5,
        "fit, s": results["mean_fit_time"],
    }
).sort_values("log-likelihood", ascending=False)
print(table.to_string(index=False, float_format="{:.2f}".format))
print(f"\nbest on held-out rows, of {len(X_test)} new ones: {search.score(X_test):.2f} nats a row")

figure, ax = plt.subplots(figsize=(8, 4), layout="constrained")
table = table[::-1]
ax.errorbar(
    table["log-likelihood"], table["sampler"], xerr=table["std. error"], fmt="o", color="#0b5394"
)
ax.set(xlabel="log-likelihood of held-out digits, nats a row")
ax.grid(axis="x", color="0.9")
plt.show()
