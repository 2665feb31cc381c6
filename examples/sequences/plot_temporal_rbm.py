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

# sphinx_gallery_thumbnail_number = 1

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


train = [song(8, seed) for seed in range(6)]
test = song(8, 100)

# %%
# An RBM of single frames knows the chords, but not their order.

model = TemporalRBM(12, order=4, n_iter=80, random_state=0).fit(train)
alone = RBMEstimator(12, learning="pcd", random_state=0).fit(
    np.concatenate(train)
)
print("mean log-likelihood of the frames of a new song, in nats")
print(f"  given the past {model.score(test):.2f}")
print(f"  alone          {alone.score(test):.2f}")

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

scores = {
    "given the past": model.score_samples(changed),
    "alone": alone.score_samples(changed),
}
fig, axes = plt.subplots(2, 1, figsize=(7.2, 3.8), sharex=True)
for ax, (title, values) in zip(axes, scores.items(), strict=True):
    ax.plot(values, linewidth=1)
    ax.plot(wrong, values[wrong], "o", color="C1", label="moved frames")
    ax.set(title=f"log-likelihood of each frame, {title}", ylabel="nats")
    ax.margins(y=0.1)
axes[0].legend(loc="lower right", bbox_to_anchor=(1, 0.97))
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

fig, axes = plt.subplots(2, 1, figsize=(7.2, 4), sharex=True)
rolls = {"lost notes": lost, "imputed means": filled}
for ax, (title, roll) in zip(axes, rolls.items(), strict=True):
    ax.imshow(roll.T, cmap="Greys", origin="lower", aspect="auto")
    ax.set_facecolor("moccasin")
    ax.set(title=title, ylabel="note")
axes[1].set_xlabel("frame")
plt.show()
out = np.isnan(lost)
right = (filled > 0.5)[out] == test[:64][out]
print(f"{right.mean():.0%} of the lost notes are right")
