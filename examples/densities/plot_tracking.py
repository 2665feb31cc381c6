"""
Track fits and stop those that fall behind: two moons
=====================================================

A fit tells callbacks of each of its epochs. Those of skorch write to
TensorBoard or MLflow; one of a few lines ends fits that have fallen behind
others, as Optuna's pruners do. What they follow is the log-likelihood ratio
of held-out rows between the model and its base, in nats.
"""

# %%
# Numbers of each epoch
# ---------------------
# skorch's ``TensorBoard`` calls ``add_scalar`` of a writer: that of
# ``torch.utils.tensorboard``, or this one, which keeps what it is told.

# sphinx_gallery_thumbnail_number = 1

import numpy as np
from sklearn.datasets import make_moons
from sklearn.model_selection import train_test_split
from skorch.callbacks import TensorBoard

from skebm import ScoreMatchingDensity


class Writer:
    """Keeps the numbers of a fit by their names and epochs."""

    def __init__(self):
        self.numbers = {}

    def add_scalar(self, tag, scalar_value, global_step):
        self.numbers.setdefault(tag, {})[global_step] = scalar_value

    def close(self):
        pass


X, _ = make_moons(2000, noise=0.1, random_state=0)
X_train, X_test = train_test_split(X, random_state=0)
rates = np.random.default_rng(0).permutation(np.geomspace(3e-4, 3e-2, 7))


def density(learning_rate):
    return ScoreMatchingDensity(
        base="gaussian",
        sigma=0.1,
        n_iter=30,
        learning_rate=learning_rate,
        random_state=0,
    )


writers, scores = [], []
for rate in rates:
    writers.append(Writer())
    model = density(rate)
    model.set_params(net__callbacks=[("board", TensorBoard(writers[-1]))])
    scores.append(model.fit(X_train).score(X_test))
print("told of:", ", ".join(sorted(writers[0].numbers)))

# %%
# Fits that fall behind
# ---------------------
# A callback reports the gain of held-out rows, and raises an exception
# where it is below the median of the fits before it at the same epoch. The
# exception ends the fit and reaches its caller, and the model is as it was
# before. With Optuna, ``Trials`` is a study and ``PrunedError`` its
# ``TrialPruned``.

from skorch.callbacks import Callback


class PrunedError(Exception):
    """Ends a fit that is behind."""


class Trials:
    """The gains that fits have reported, by epoch."""

    def __init__(self, warmup):
        self.warmup, self.gains = warmup, {}

    def is_behind(self, gain, epoch):
        before = self.gains.setdefault(epoch, [])
        behind = len(before) >= 3 and gain < np.median(before)
        before.append(gain)
        return behind and epoch >= self.warmup


class Pruning(Callback):
    """Ends a fit that is behind others."""

    def __init__(self, trials):
        self.trials = trials

    def on_epoch_end(self, net, **kwargs):
        gain = net.history[-1].get("gain_over_base")
        epoch = len(net.history)
        if gain is not None and self.trials.is_behind(gain, epoch):
            raise PrunedError


trials, ended, kept = Trials(warmup=10), [], []
for rate, writer in zip(rates, writers, strict=True):
    follow = [("board", TensorBoard(writer)), ("prune", Pruning(trials))]
    writer.numbers.clear()
    model = density(rate).set_params(net__callbacks=follow)
    try:
        kept.append(model.fit(X_train).score(X_test))
    except PrunedError:
        kept.append(np.nan)
    ended.append(max(writer.numbers["gain_over_base"]))

# %%
# The curves of all fits, and where those that were behind ended.

import matplotlib.pyplot as plt

figure, axes = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
colours = plt.get_cmap("viridis")(np.linspace(0, 0.9, len(rates)))
order = np.argsort(rates)
for i, colour in zip(order, colours, strict=True):
    gains, label = writers[i].numbers["gain_over_base"], f"{rates[i]:.1g}"
    axes[0].plot(
        list(gains), list(gains.values()), color=colour, label=label
    )
    last = max(gains)
    axes[0].plot(last, gains[last], "o", color=colour, ms=4)
axes[0].set(xlabel="epoch", ylabel="gain over the base, nats a row")
axes[0].legend(title="learning rate", fontsize="x-small", ncols=2)
axes[1].plot(rates, scores, "o", color="0.7", label="all, 30 epochs")
axes[1].plot(rates, kept, "o", color="C1", label="not ended")
axes[1].set(
    xscale="log", xlabel="learning rate", ylabel="test rows, nats a row"
)
axes[1].legend(fontsize="x-small")
plt.show()

print("learning rate  epochs  test rows, nats")
for rate, epochs, score in sorted(zip(rates, ended, scores, strict=True)):
    print(f"{rate:13.4f}  {epochs:6d}  {score:15.3f}")
best, best_kept = int(np.argmax(scores)), int(np.nanargmax(kept))
print(
    f"\nbest of all: {rates[best]:.4f}; of those not ended: "
    f"{rates[best_kept]:.4f}, in {sum(ended)} of {30 * len(rates)} epochs"
)
