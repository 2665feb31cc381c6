"""
Grid search over samplers: an RBM of digits
===========================================

The negative samples of an energy-based model come from a sampler, so the
sampler and its step size are hyper-parameters. Samplers are configuration
objects with ``get_params``: a grid may contain samplers, or a parameter of
one as ``sampler__step_size``.
"""

# %%
# A pipeline from counts to a density
# -----------------------------------
# Grey values are binarised, and a restricted Boltzmann machine is trained
# by maximum likelihood with persistent chains. Block Gibbs sampling, the
# natural sampler of an RBM, is the reference. The gradient-based samplers
# do not use the two layers, and are applicable to any differentiable energy
# of binary rows. Each sampler takes five steps per batch.

# sphinx_gallery_thumbnail_number = 1

import pandas as pd
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import Binarizer

from skebm import RBMEstimator
from skebm.samplers import (
    DiscreteLangevin,
    Gibbs,
    GibbsWithGradients,
    Persistent,
)

X_train, X_test = train_test_split(
    load_digits().data, train_size=600, random_state=0
)
rbm = RBMEstimator(
    16,
    base="independent",
    chains=Persistent(n_steps=5),
    n_iter=10,
    learning_rate=0.3,
    batch_size=50,
    random_state=0,
)
pipeline = Pipeline([("binary", Binarizer(threshold=7)), ("rbm", rbm)])

# %%
# The grid
# --------
# A list of grids searches over the *class* of the sampler and, for samplers
# that have one, the step size. Scores are mean log-likelihoods of
# validation rows; with 16 hidden units log Z is exact.

steps = [0.2, 0.5, 1.0]
any_class = [Gibbs(), GibbsWithGradients(), DiscreteLangevin(adapt=True)]
biased = DiscreteLangevin(adjust=False)  # no acceptance step
grid = [
    {"rbm__sampler": any_class},
    {
        "rbm__sampler": [DiscreteLangevin()],
        "rbm__sampler__step_size": steps,
    },
    {"rbm__sampler": [biased], "rbm__sampler__step_size": steps},
]
search = GridSearchCV(pipeline, grid, cv=3).fit(X_train)

# %%
# Results
# -------

import matplotlib.pyplot as plt

results = pd.DataFrame(search.cv_results_)
names = []
for params in results["params"]:
    name = f"{params['rbm__sampler']}".replace("()", "")
    step = params.get("rbm__sampler__step_size")
    names.append(f"{name}, step {step}" if step else name)
table = pd.DataFrame(
    {
        "sampler": names,
        "log-likelihood": results["mean_test_score"],
        "std. error": results["std_test_score"] / 3**0.5,
        "fit, s": results["mean_fit_time"],
    }
).sort_values("log-likelihood", ascending=False)
print(table.to_string(index=False, float_format="{:.2f}".format))
print(f"\nbest model, test rows: {search.score(X_test):.2f} nats per row")

figure, ax = plt.subplots(figsize=(7, 3.4))
table = table[::-1]
ax.errorbar(
    table["log-likelihood"],
    table["sampler"],
    xerr=table["std. error"],
    fmt="o",
)
ax.set_xlabel("mean log-likelihood of validation rows and its error, nats")
ax.grid(axis="x")
plt.show()
