"""
Joint energy-based model of wines: classification and outliers
==============================================================

A joint energy-based model is a classifier whose logits also define a
density of the rows. It can be tuned like any classifier, and it also gives
log p(x), the log-likelihood of a row.
"""

# %%
# Grid search over sampler and weight
# -----------------------------------
# The data are chemical analyses of wines from three growers.
# ``generative_weight=0`` is the plain classifier. The sampler's step size
# is a hyper-parameter like any other.

# sphinx_gallery_thumbnail_number = 1

from sklearn.datasets import load_wine
from sklearn.model_selection import GridSearchCV, train_test_split

from skebm import JEMClassifier
from skebm.samplers import MALA

X, y = load_wine(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(
    X, y, stratify=y, random_state=0
)
jem = JEMClassifier(sampler=MALA(), n_iter=30, random_state=0)
grid = [
    {"generative_weight": [0.0]},
    {
        "generative_weight": [0.1, 1.0],
        "sampler__step_size": [0.1, 0.3],
    },
]
search = GridSearchCV(jem, grid, cv=3, scoring="neg_log_loss").fit(
    X_train, y_train
)

# %%
# Mean log-likelihoods of held-out labels, in nats:

import pandas as pd

results = pd.DataFrame(search.cv_results_)
table = pd.DataFrame(
    {
        "weight": results["param_generative_weight"],
        "step size": results["param_sampler__step_size"],
        "nats": results["mean_test_score"],
        "std. deviation": results["std_test_score"],
    }
)
print(
    table.to_string(index=False, float_format="{:.3f}".format, na_rep="-")
)

# %%
# Out-of-distribution rows
# ------------------------
# Each test wine is moved to twice its distance from the mean of all wines.
# The classifier is more certain of these rows than of the wines themselves,
# whereas :math:`\log p(x)` is low.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import roc_auc_score

distant = X_train.mean(0) + 2 * (X_test - X_train.mean(0))
model = JEMClassifier(n_iter=60, random_state=0).fit(X_train, y_train)
print(f"accuracy on the test wines: {model.score(X_test, y_test):.0%}")
statistics = {
    "log p(x), nats": model.score_samples,
    "largest p(y | x)": lambda rows: model.predict_proba(rows).max(1),
}
figure, axes = plt.subplots(1, 2, figsize=(7.5, 3))
for ax, (name, statistic) in zip(axes, statistics.items(), strict=True):
    normal, outlying = statistic(X_test), statistic(distant)
    both = np.concatenate([normal, outlying])
    area = roc_auc_score(np.repeat([1, 0], len(X_test)), both)
    bins = np.linspace(both.min(), both.max(), 25)
    ax.hist(normal, bins, alpha=0.6, label="test wines")
    ax.hist(outlying, bins, alpha=0.6, label="at twice the distance")
    ax.set(xlabel=name, title=f"AUROC {area:.3f}")
axes[0].set_ylabel("wines")
axes[1].legend(loc="upper left")
plt.show()
