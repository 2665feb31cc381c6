"""
Temporal RBM of a gait: continuation and lost joints
====================================================

The angles of moving joints are real columns. A temporal RBM of these starts
as a linear autoregression, which its hidden units correct. It continues a
sequence beyond its end, and imputes joints that were lost in some frames,
given the frames before and after.
"""

# %%
# The data are walks of eight joints, whose angles are harmonics of a
# stride; its pace and width differ from walk to walk.

# sphinx_gallery_thumbnail_number = 2

import matplotlib.pyplot as plt
import numpy as np

from skebm import TemporalRBM
from skebm.inspection import TrajectoryDisplay

JOINTS = ["hip", "knee", "ankle", "toe"]
JOINTS += ["spine", "shoulder", "elbow", "wrist"]
rng = np.random.default_rng(0)
LEVEL = rng.normal(size=(3, 8)) / np.array([[1], [2], [4]])
SHIFT = rng.uniform(0, 6.3, (3, 8))


def walk(n_frames, seed):
    """Angles of joints in radians, (n_frames, 8)."""
    rng = np.random.default_rng(seed)
    steps = 0.22 + 0.03 * rng.normal() + 0.01 * rng.normal(size=n_frames)
    phase, stride = np.cumsum(steps)[:, None], 1 + 0.1 * rng.normal()
    angle = sum(
        LEVEL[k] * np.sin((k + 1) * phase + SHIFT[k]) for k in range(3)
    )
    return stride * angle + 0.02 * rng.normal(size=angle.shape)


train, test = [walk(150, seed) for seed in range(12)], walk(150, 100)

# %%
# Joints move together: the Gaussian base models the correlations of what
# the past does not explain.

model = TemporalRBM(
    30, order=12, n_iter=40, base="gaussian", random_state=0
).fit(train)
print(f"{model.score(test):.2f} nats a frame given its past")

# %%
# After twenty frames of a new walk, the model continues it for 130 frames.
# The continuation follows the walk for half a stride; after that, the
# joints keep swinging together, at a pace and a width of their own.

display = TrajectoryDisplay.from_estimator(
    model,
    test,
    columns=[0, 1, 2, 6],
    n_start=20,
    n_frames=130,
    random_state=0,
)
display.plot()
for ax, column in zip(
    display.axes_.values(), display.column_names, strict=True
):
    ax.set_ylabel(JOINTS[int(column[1:])] + ", rad")
plt.show()

# %%
# The knee and the ankle are lost for 25 frames, all joints for ten. The
# figure compares the mean given all known entries with linear
# interpolation.

lost = test.copy()
lost[40:65, 1:3] = np.nan
lost[100:110] = np.nan
filled = model.impute(lost, random_state=0, how="mean")
lines = lost.copy()
for j in range(8):
    known = ~np.isnan(lost[:, j])
    lines[:, j] = np.interp(
        np.arange(150), np.flatnonzero(known), lost[known, j]
    )

fig, axes = plt.subplots(2, 1, figsize=(7.2, 3.6), sharex=True)
for ax, j in zip(axes, (1, 2), strict=True):
    unknown = np.isnan(lost[:, j])
    by_model = np.where(unknown, filled[:, j], np.nan)
    by_line = np.where(unknown, lines[:, j], np.nan)
    ax.plot(test[:, j], color="0.75", linewidth=4, label="true")
    ax.plot(by_model, color="C1", label="model")
    ax.plot(by_line, "--", color="C0", label="line")
    ax.set_ylabel(f"{JOINTS[j]}, rad")
axes[0].legend(ncols=3, loc="lower right", bbox_to_anchor=(1, 0.97))
axes[1].set_xlabel("frame")
plt.show()

out = np.isnan(lost)
for name, values in (("model", filled), ("interpolation", lines)):
    error = np.square(values - test)[out].mean()
    print(f"{name}: mean squared error {error:.4f}")
