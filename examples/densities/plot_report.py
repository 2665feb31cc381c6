"""
A report of a fitted model
==========================

Did the fit work, is the model any good, and what should be changed? One
page answers, with the same as data: here it finds a network on a poor base
that was trained for too few passes, and its advice is followed.
"""

# %%
# A network is trained for three passes on a base that is far from the rows.

# sphinx_gallery_thumbnail_number = 1

import matplotlib.pyplot as plt
from sklearn.base import clone
from sklearn.datasets import make_moons
from sklearn.model_selection import train_test_split

from skebm import ScoreMatchingDensity
from skebm.inspection import report

moons, _ = make_moons(500, noise=0.1, random_state=0)
train, test = train_test_split(moons, random_state=0)
model = ScoreMatchingDensity(base="gaussian", n_iter=3, random_state=0)
page = report(model.fit(train), train, test)

# %%
# It is below a mixture of normals, and the report names the settings that
# may be the reason.
for one in page.recommendations:
    print(one.why, one.program, sep="\n    ")

# %%
# The recommendations are followed, and new rows become more likely.
better = clone(model)
for one in page.recommendations:
    better.set_params(**one.change)
better_page = report(better.fit(train), train, test)

figure, ax = plt.subplots(figsize=(6.4, 2.4), layout="constrained")
for place, (found, label) in enumerate(
    ((page, "as it was"), (better_page, "advice followed"))
):
    rivals = found.facts["likelihood"]["rivals"]
    names = [one["name"] for one in rivals]
    at = [k + 0.3 * place for k in range(len(rivals))]
    gains = [one["gain"] for one in rivals]
    errors = [one["gain_error"] for one in rivals]
    ax.barh(at, gains, 0.28, xerr=errors, label=label)
ax.axvline(0, color="0.3", lw=0.8)
ax.set_yticks([k + 0.15 for k in range(len(names))], names)
ax.set_xlabel("nats a row by which the model is above it")
ax.legend(frameon=False)
plt.show()

# %%
# The page itself; ``save("report.html")`` writes it to a file.
better_page  # noqa: B018
