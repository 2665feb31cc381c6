"""
A report of a fitted model
==========================

One page says whether a fit worked, how good the model is, and what to
change.
"""

# %%
# A network is trained for three passes on a base that is far from the rows.
from sklearn.datasets import make_moons
from sklearn.model_selection import train_test_split

from skebm import ScoreMatchingDensity
from skebm.inspection import report

moons, _ = make_moons(500, noise=0.1, random_state=0)
train, test = train_test_split(moons, random_state=0)
model = ScoreMatchingDensity(base="gaussian", n_iter=3, random_state=0)
page = report(model.fit(train), train, test)

# %%
# It is below a mixture of normals, and the report names the setting that
# may be the reason.
for rival in page.facts["likelihood"]["rivals"]:
    gain = f"{rival['gain']:+.2f} ({rival['gain_error']:.2f})"
    print(f"{gain} nats above {rival['name']}")
for one in page.recommendations:
    print(one.why, one.program, sep="\n    ")

# %%
# The recommendation is followed, and the page of the better model shown.
# ``save("report.html")`` writes it to a file.
model.set_params(**page.recommendations[0].change).fit(train)
report(model, train, test)
