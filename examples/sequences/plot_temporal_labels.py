"""
Temporal RBM classifier: the chords of a melody
===============================================

The chords of a song can be inferred from its melody, although a single note
belongs to several chords. `TemporalRBMClassifier` sums out the labels of
all other frames: the notes before, and in a generative fit also those
after, determine the chord.
"""

# %%
# In these songs, chords of three to six notes follow each other in a fixed
# order, with some chords left out. Three notes in four are drawn from the
# chord, the others from all seven notes. The label of a note is its chord.

# sphinx_gallery_thumbnail_number = 1

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegression

from skebm import TemporalRBMClassifier

CHORDS = {"C": [0, 2, 4], "Am": [5, 0, 2], "F": [3, 5, 0], "G": [4, 6, 1]}
NAMES = list(CHORDS)


def song(rng, n_notes=60):
    """Notes, one-hot, and their chords."""
    notes, chords, at = [], [], rng.integers(4)
    while len(notes) < n_notes:
        for _ in range(rng.integers(3, 7)):
            of_chord = rng.random() < 0.75
            notes.append(
                rng.choice(CHORDS[NAMES[at]])
                if of_chord
                else rng.integers(7)
            )
            chords.append(NAMES[at])
        at = (at + rng.choice([1, 2], p=[0.8, 0.2])) % 4
    return np.eye(7)[notes[:n_notes]], np.array(chords[:n_notes])


def songs(n, seed):
    """Lists of melodies and of their chords."""
    rng = np.random.default_rng(seed)
    return tuple(
        map(list, zip(*(song(rng) for _ in range(n)), strict=True))
    )


(X, y), (X_new, y_new) = songs(60, 0), songs(20, 1)

# %%
# The discriminative fit learns :math:`p(y_t \mid x_t, x_{<t}, y_{<t})`, so
# that a label depends on the notes so far. The generative one learns notes
# and chords together, so that its labels depend on the whole song.

settings = {
    "n_components": 8,
    "order": 2,
    "label_order": 1,
    "learning_rate": 0.02,
    "random_state": 0,
}
causal = TemporalRBMClassifier(**settings, n_iter=40).fit(X, y)
smoothing = TemporalRBMClassifier(
    **settings, n_iter=60, objective="generative"
).fit(X, y)
alone = LogisticRegression().fit(np.concatenate(X), np.concatenate(y))
by_note = alone.score(np.concatenate(X_new), np.concatenate(y_new))
print("accuracy on new songs")
print(f"  the note alone    {by_note:.2f}")
print(f"  the notes so far  {causal.score(X_new, y_new):.2f}")
print(f"  the whole song    {smoothing.score(X_new, y_new):.2f}")

# %%
# The panels show the probabilities of the chords of a new song; points mark
# the true chords. Where a chord begins, the notes that follow decide.

panels = {"the note alone": alone, "the notes so far": causal}
panels["the whole song"] = smoothing
truth = np.searchsorted(alone.classes_, y_new[0])
fig, axes = plt.subplots(3, 1, figsize=(7.2, 4.8), sharex=True)
for ax, (title, model) in zip(axes, panels.items(), strict=True):
    p = model.predict_proba(X_new[0])
    picture = ax.imshow(p.T, vmin=0, vmax=1, aspect="auto", origin="lower")
    ax.plot(truth, ".", color="C1", markersize=6)
    ax.set_title(f"p(chord | {title})")
    ax.set_yticks(range(4), alone.classes_)
axes[-1].set_xlabel("note")
fig.colorbar(picture, ax=axes, label="probability", aspect=40)
plt.show()
