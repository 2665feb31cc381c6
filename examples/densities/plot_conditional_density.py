"""
Conditional densities: a curve with branches and a chaotic series
=================================================================

A regression estimates the mean of x. A conditional density describes the
whole distribution of x given the conditions, with branches, skewness and
errors that grow, and detects rows that do not fit.
"""

# %%
# The data follow a curve that divides into two branches, with errors that
# depend on the condition.

import matplotlib.pyplot as plt
import numpy as np

from skebm import ConditionalDensity
from skebm.estimators import lagged


def rows(n, seed):
    """Conditions and x side by side."""
    rng = np.random.default_rng(seed)
    c = rng.uniform(-3, 3, n)
    branch = rng.choice([-1, 1], n) * np.clip(c, 0, None) / 2
    error = np.where(
        c < 0, rng.exponential(0.4, n), 0.1 * rng.normal(size=n)
    )
    return np.column_stack([c, np.sin(2 * c) / 2 + branch + error])


train, test = rows(1500, 0), rows(1000, 1)
model = ConditionalDensity(given=0, random_state=0).fit(train)
linear = ConditionalDensity(given=0, base="linear", n_iter=0).fit(train)
print(
    f"nats of a row: {model.score(test):.2f}, by linear regression {linear.score(test):.2f}"
)

# %%
# The figure shows both densities on a grid; every column of a panel
# integrates to one.

c, x = np.linspace(-3, 3, 120), np.linspace(-2.5, 2.5, 160)
grid = np.stack(np.meshgrid(c, x), -1).reshape(-1, 2)
fig, axes = plt.subplots(
    1, 2, figsize=(9, 3.6), sharey=True, layout="constrained"
)
for ax, one, title in (
    (axes[0], linear, "linear regression"),
    (axes[1], model, "the model"),
):
    p = np.exp(one.score_samples(grid)).reshape(160, 120)
    ax.pcolormesh(c, x, p, cmap="Blues", vmax=3, rasterized=True)
    ax.plot(*test[:300].T, ".", color="C3", ms=2)
    ax.plot(
        c,
        one.expected(c[:, None])[:, 0],
        color="black",
        lw=1,
        label="mean given c",
    )
    ax.set(title=f"p(x | c) by {title}", xlabel="c")
axes[0].set_ylabel("x")
axes[0].legend()
plt.show()

# %%
# The distribution of the next step of a series given the last one is a
# conditional density as well. This series doubles an angle in each step and
# adds noise: its autocorrelation is zero, but its steps are far from
# independent.

rng = np.random.default_rng(0)
angle, series = 1.0, []
for _ in range(1500):
    angle = (2 * angle + 0.2 * rng.normal()) % (2 * np.pi)
    series.append(np.cos(angle) + 0.05 * rng.normal())
table = lagged(np.array(series)[:, None], order=1)

following = ConditionalDensity(given=0, random_state=0).fit(table[:1200])
autoregression = ConditionalDensity(given=0, base="linear", n_iter=0).fit(
    table[:1200]
)
for name, one in (
    ("model", following),
    ("linear autoregression", autoregression),
):
    print(
        f"{name}: {one.score(table[1200:]):.2f} nats of a step given the last one"
    )

drawn = following.sample(table[1200:, :1], random_state=0)
fig, axes = plt.subplots(
    1, 2, figsize=(7, 3.4), sharex=True, sharey=True, layout="constrained"
)
axes[0].plot(table[1200:, 0], table[1200:, 1], ".", ms=3)
axes[0].set(title="real", xlabel="step t", ylabel="step t + 1")
axes[1].plot(table[1200:, 0], drawn[:, 0], ".", ms=3, color="C1")
axes[1].set(title="drawn given the same steps", xlabel="step t")
plt.show()
