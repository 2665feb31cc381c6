"""
Deep belief network of digits: pre-training with few labels
===========================================================

A deep belief network is trained without labels, one RBM after the other. A
classifier then starts from its weights
(:meth:`skebm.DeepBeliefNetwork.to_module`). Here the first training uses
6,485 digits without labels, and the second 20 to 640 of them with labels.
For comparison, the same classifier also starts from random weights. Digits
are shifted by one pixel in the four directions, so that pixels alone say
little.
"""

# sphinx_gallery_thumbnail_number = 2

# %%
# Digits without labels
# ---------------------
# The network of two hidden layers is fitted to all training digits, without
# their labels. A sparsity target makes each unit active for few digits,
# which helps a classifier.

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from skebm import DeepBeliefNetwork, RBMEstimator
from skebm.objectives import Penalty


def shifted_copies(images):
    """Each 8 x 8 image unchanged and shifted right, left, down and up."""
    padded = np.pad(images.reshape(-1, 8, 8), ((0, 0), (1, 1), (1, 1)))
    corners = [(1, 1), (1, 0), (1, 2), (0, 1), (2, 1)]
    copies = [
        padded[:, top : top + 8, left : left + 8] for top, left in corners
    ]
    return np.stack(copies, axis=1).reshape(-1, 64)


X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)
X_train, X_test, y_train, y_test = train_test_split(
    X, y, test_size=500, stratify=y, random_state=0
)
X_train, X_test = shifted_copies(X_train), shifted_copies(X_test)
y_train, y_test = np.repeat(y_train, 5), np.repeat(y_test, 5)

rbm = RBMEstimator(
    learning_rate=0.1,
    batch_size=20,
    n_iter=30,
    base="independent",
    penalty=Penalty(sparsity_target=0.05),
)
network = DeepBeliefNetwork((200, 200), rbm=rbm, random_state=0).fit(
    X_train
)
print(network.to_module(n_outputs=10))

# %%
# What it has learned
# -------------------
# For samples, a Gibbs chain is run in the top RBM, and the layers below are
# drawn from there down to the pixels, which are bits. For reconstructions,
# means are computed from the pixels up to the top, and down again.

samples = network.sample(10, random_state=0)
rows = {
    "digits": X_test[:50:5],
    "reconstructions": network.reconstruct(X_test[:50:5]),
}
rows["samples (bits)"] = samples
fig, axes = plt.subplots(3, 10, figsize=(7, 2.6), layout="constrained")
for line, (name, images) in zip(axes, rows.items(), strict=True):
    line[0].set_title(name, loc="left", fontsize="small")
    for ax, image in zip(line, images, strict=True):
        ax.imshow(image.reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
        ax.set_axis_off()

# %%
# Training with labels
# --------------------
# From either start, the network is trained by Adam on full batches, for the
# same number of steps. The module takes the pixels as they are; its last
# layer is new, and starts at zero.


def random_start(seed):
    """The same layers with the random weights of torch."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.nn.Sequential(
            torch.nn.Linear(64, 200),
            torch.nn.Sigmoid(),
            torch.nn.Linear(200, 200),
            torch.nn.Sigmoid(),
            torch.nn.Linear(200, 10),
        )


def accuracy_after_training(module, rows, labels, n_steps=300):
    """Accuracy on the test digits."""
    x, target = torch.as_tensor(rows), torch.as_tensor(labels)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(n_steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(x), target).backward()
        optimizer.step()
    with torch.no_grad():
        return (
            module(torch.as_tensor(X_test)).argmax(1).numpy() == y_test
        ).mean()


def accuracy_of_pixels(rows, labels):
    """Accuracy of a logistic regression on the pixels."""
    return (
        LogisticRegression(max_iter=1000)
        .fit(rows, labels)
        .score(X_test, y_test)
    )


numbers, n_seeds = (20, 80, 320, 640), 5
names = ("pre-trained", "random weights", "pixels, logistic regression")
found = np.empty((len(names), len(numbers), n_seeds))
for k, n in enumerate(numbers):
    for seed in range(n_seeds):
        picked = np.random.default_rng(seed).permutation(len(X_train))[:n]
        labelled = X_train[picked], y_train[picked]
        found[0, k, seed] = accuracy_after_training(
            network.to_module(10), *labelled
        )
        found[1, k, seed] = accuracy_after_training(
            random_start(seed), *labelled
        )
        found[2, k, seed] = accuracy_of_pixels(*labelled)
for name, accuracy in zip(names, found.mean(2), strict=True):
    print(f"{name:28}", " ".join(f"{value:.3f}" for value in accuracy))
gain = found[0] - found[1]
print(
    "gain over random weights    ",
    " ".join(f"{value:.3f}" for value in gain.mean(1)),
)
print(
    "its standard error          ",
    " ".join(f"{s / n_seeds**0.5:.3f}" for s in gain.std(1, ddof=1)),
)

# %%
# Pre-training helps most with 80 labels, where it adds eight points of
# accuracy. With fewer labels no classifier learns much; with more labels, a
# network that starts from random weights also learns what the digits
# without labels have in common.

fig, ax = plt.subplots(figsize=(5, 3.2), layout="constrained")
for name, accuracy in zip(names, found, strict=True):
    error = accuracy.std(1, ddof=1) / n_seeds**0.5
    ax.errorbar(
        numbers, accuracy.mean(1), error, marker="o", capsize=3, label=name
    )
ax.set(
    xscale="log", xlabel="labels", ylabel="accuracy on 2,500 test digits"
)
ax.set_xticks(numbers, numbers)
ax.minorticks_off()
ax.legend()
plt.show()
