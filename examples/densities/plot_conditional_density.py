"""
Conditional densities: a curve with branches and a chaotic series
=================================================================

A regression estimates the mean of x. A conditional density describes the
whole distribution of x given the conditions, with branches, skewness and
errors that grow, and detects rows that do not fit.
"""

# %%
# A curve with branches
# ---------------------
# The data follow a curve that divides into two branches, with errors that
# depend on the condition.

# sphinx_gallery_thumbnail_number = 1

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


train, test = rows(1000, 0), rows(1000, 1)
model = ConditionalDensity(given=0, n_iter=50, random_state=0).fit(train)
linear = ConditionalDensity(given=0, base="linear", n_iter=0).fit(train)
print("mean log-likelihood of new rows, in nats")
print(f"  conditional density  {model.score(test):.2f}")
print(f"  linear regression    {linear.score(test):.2f}")

# %%
# The figure shows both densities on a grid; every column of a panel
# integrates to one. Points are new rows.

c, x = np.linspace(-3, 3, 181), np.linspace(-2.5, 2.5, 161)
grid = np.stack(np.meshgrid(c, x), -1).reshape(-1, 2)
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.2), sharey=True)
panels = {"linear regression": linear, "conditional density": model}
for ax, (title, density) in zip(axes, panels.items(), strict=True):
    p = np.exp(density.score_samples(grid)).reshape(len(x), -1)
    ax.pcolormesh(c, x, p, cmap="Blues", vmax=3, rasterized=True)
    ax.plot(*test[:300].T, ".", color="C1", markersize=3)
    mean = density.expected(c[:, None])[:, 0]
    ax.plot(c, mean, color="black", linewidth=1, label="mean given c")
    ax.set(title=f"p(x | c), {title}", xlabel="condition c")
    ax.set(xticks=[-2, 0, 2], ylim=(-2.5, 2.5))
axes[0].set_ylabel("x")
axes[0].legend(loc="lower left")
plt.show()

# %%
# A chaotic series
# ----------------
# The distribution of the next step of a series given the last one is a
# conditional density as well. This series doubles an angle in each step and
# adds noise: its autocorrelation is zero, but its steps are far from
# independent.

rng = np.random.default_rng(0)
angle, series = 1.0, []
for _ in range(1200):
    angle = (2 * angle + 0.2 * rng.normal()) % (2 * np.pi)
    series.append(np.cos(angle) + 0.05 * rng.normal())
table = lagged(np.array(series)[:, None], order=1)

known, new = table[:900], table[900:]
following = ConditionalDensity(given=0, n_iter=50, random_state=0)
following.fit(known)
linear = ConditionalDensity(given=0, base="linear", n_iter=0).fit(known)
print("mean log-likelihood of a step given the last one, in nats")
print(f"  conditional density    {following.score(new):.2f}")
print(f"  linear autoregression  {linear.score(new):.2f}")

# %%
# A next step is drawn given each of the 299 last steps.

drawn = following.sample(new[:, :1], random_state=0)
fig, axes = plt.subplots(1, 2, figsize=(7, 3.2), sharex=True, sharey=True)
axes[0].plot(new[:, 0], new[:, 1], ".")
axes[0].set(title="series", xlabel="step t", ylabel="step t + 1")
axes[1].plot(new[:, 0], drawn[:, 0], ".", color="C1")
axes[1].set(title="drawn given the same steps", xlabel="step t")
plt.show()
