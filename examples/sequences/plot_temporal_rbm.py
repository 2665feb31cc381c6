"""
Temporal RBM of a piano roll: chords that follow each other
===========================================================

A temporal RBM learns which frame of a piano roll follows from the last
ones. It continues a song beyond its end, and detects frames that do not
follow, although each of them would be likely elsewhere.
"""

# %%
# The songs consist of four chords, each of which lasts for four frames,
# with a melody on top. The order of the chords is always the same; the
# notes of the melody belong to the chord.

import matplotlib.pyplot as plt
import numpy as np

from skebm import RBMEstimator, TemporalRBM
from skebm.inspection import PianoRollDisplay

CHORDS = [[0, 4, 7], [9, 0, 4], [5, 9, 0], [7, 11, 2]]  # C, A minor, F, G


def song(n_bars, seed):
    """A piano roll of 24 notes."""
    rng = np.random.default_rng(seed)
    roll = np.zeros((16 * n_bars, 24))
    for t in range(len(roll)):
        chord = CHORDS[t // 4 % 4]
        roll[t, chord] = 1
        roll[t, 12 + rng.choice(chord)] = 1
    return roll


train = [song(8, seed) for seed in range(20)]
test = song(8, 100)

# %%
# An RBM of single frames knows the chords, but not their order.

model = TemporalRBM(12, order=4, n_iter=100, random_state=0).fit(train)
alone = RBMEstimator(12, learning="pcd", random_state=0).fit(
    np.concatenate(train)
)
print(
    f"nats of a frame given its past: {model.score(test):.2f}, alone: {alone.score(test):.2f}"
)

# %%
# The model continues a new song after its first bar, frame by frame.

PianoRollDisplay.from_estimator(
    model, test, first_pitch=60, random_state=0
).plot()
plt.show()

# %%
# Some frames are now moved to where they do not belong. For an RBM of
# single frames they are as likely as before; given the past they are not.

rng = np.random.default_rng(0)
changed = test.copy()
wrong = np.sort(rng.choice(np.arange(8, 128, 6), 8, replace=False))
changed[wrong] = test[(wrong + 4) % 128]  # a frame of the next chord

fig, axes = plt.subplots(
    2, 1, figsize=(8, 4), sharex=True, layout="constrained"
)
for ax, value, title in (
    (axes[0], model.score_samples(changed), "given the past"),
    (axes[1], alone.score_samples(changed), "alone"),
):
    ax.plot(value, lw=0.8)
    ax.plot(
        wrong, value[wrong], "o", color="C3", ms=4, label="moved frames"
    )
    ax.set(title=f"log p of each frame, {title}", ylabel="nats")
axes[0].legend(loc="lower center")
axes[1].set_xlabel("frame")
plt.show()

# %%
# In a new song, two beats are lost completely, and the lowest octave is
# lost for a bar. Both are imputed given all known notes, before and after:
# the means are probabilities of notes.

lost = test[:64].copy()
lost[20:28] = np.nan
lost[40:56, :12] = np.nan
filled = model.impute(lost, random_state=0, how="mean")

fig, axes = plt.subplots(
    2, 1, figsize=(8, 4.5), sharex=True, layout="constrained"
)
for ax, roll, title in (
    (axes[0], lost, "lost notes"),
    (axes[1], filled, "filled in"),
):
    ax.imshow(
        roll.T,
        cmap="Greys",
        origin="lower",
        aspect="auto",
        interpolation="nearest",
    )
    ax.set_facecolor("#f5cba7")
    ax.set(title=title, ylabel="note")
axes[1].set_xlabel("frame")
plt.show()
out = np.isnan(lost)
right = (filled > 0.5)[out] == test[:64][out]
print(f"{right.mean():.0%} of the lost notes are right")
