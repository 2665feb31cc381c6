"""
Deep belief network of digits: pre-training with few labels
===========================================================

A deep belief network is trained without labels, one RBM after the other. A
classifier then starts from its weights
(:meth:`skebm.DeepBeliefNetwork.to_module`). Here the first training uses
6,485 digits without labels, and the second 20 to 320 of them with labels.
For comparison, the same classifier also starts from random weights. Digits
are shifted by one pixel in the four directions, so that pixels alone say
little.
"""

# %%
# Digits without labels
# ---------------------
# The network of two hidden layers is fitted to all training digits, without
# their labels. A sparsity target makes each unit active for few digits,
# which helps a classifier.

# sphinx_gallery_thumbnail_number = 1

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
    n_iter=10,
    base="independent",
    penalty=Penalty(sparsity_target=0.05),
)
network = DeepBeliefNetwork((200, 200), rbm=rbm, random_state=0).fit(
    X_train
)
print(network.to_module(n_outputs=10))

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


def accuracy_after_training(module, rows, labels, n_steps=200):
    """Accuracy on the test digits."""
    x, target = torch.as_tensor(rows), torch.as_tensor(labels)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(n_steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(x), target).backward()
        optimizer.step()
    with torch.no_grad():
        predicted = module(torch.as_tensor(X_test)).argmax(1)
    return (predicted.numpy() == y_test).mean()


def accuracy_of_pixels(rows, labels):
    """Accuracy of a logistic regression on the pixels."""
    classifier = LogisticRegression(max_iter=1000).fit(rows, labels)
    return classifier.score(X_test, y_test)


numbers, n_seeds = (20, 80, 320), 5
names = ("pre-trained", "random weights", "pixels, logistic regression")
accuracy = np.empty((len(names), len(numbers), n_seeds))
for k, n in enumerate(numbers):
    for seed in range(n_seeds):
        picked = np.random.default_rng(seed).permutation(len(X_train))[:n]
        labelled = X_train[picked], y_train[picked]
        module = network.to_module(10)
        accuracy[0, k, seed] = accuracy_after_training(module, *labelled)
        module = random_start(seed)
        accuracy[1, k, seed] = accuracy_after_training(module, *labelled)
        accuracy[2, k, seed] = accuracy_of_pixels(*labelled)
gain = accuracy[0] - accuracy[1]
error = gain.std(1, ddof=1) / n_seeds**0.5
print("labels                     ", *(f"{n:6}" for n in numbers))
for name, values in zip(names, accuracy.mean(2), strict=True):
    print(f"{name:27}", *(f"{value:6.3f}" for value in values))
print(
    f"{'gain over random weights':27}", *(f"{g:6.3f}" for g in gain.mean(1))
)
print(f"{'its standard error':27}", *(f"{e:6.3f}" for e in error))

# %%
# With 20 labels no classifier learns much. With more of them, the network
# that starts from random weights also learns what the digits without labels
# have in common.

fig, ax = plt.subplots(figsize=(6, 3.4))
for name, values in zip(names, accuracy, strict=True):
    error = values.std(1, ddof=1) / n_seeds**0.5
    ax.errorbar(numbers, values.mean(1), error, marker="o", label=name)
ax.set(xscale="log", xlabel="labels")
ax.set_ylabel(f"accuracy on {len(X_test):,} test digits")
ax.set_xticks(numbers, numbers)
ax.minorticks_off()
ax.legend(loc="upper left")
plt.show()
