"""
RBM of handwritten digits: likelihood, anomalies, samples
=========================================================

A first example (``make demo``). A restricted Boltzmann machine (RBM) is
fitted to binary images of 8 x 8 pixels. It then gives the log-likelihood of
new images, flags outliers, and draws samples.
"""

# %%
# The images are made black and white, and a quarter of them are held out
# for testing.

# sphinx_gallery_thumbnail_number = 1

import time

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from skebm import RBMEstimator

pixels, digit = load_digits(return_X_y=True)
X = (pixels >= 8).astype(float)  # grey levels: 0 to 7 white, 8 to 16 black
X_train, X_test, _, digit_test = train_test_split(
    X, digit, test_size=0.25, random_state=0
)

# %%
# Fit
# ---

start = time.perf_counter()
rbm = RBMEstimator(n_components=128, n_iter=1000, random_state=0).fit(
    X_train
)
print(
    f"Fitted an RBM with {rbm.n_components} hidden units to {len(X_train)} "
    f"images of {X.shape[1]} pixels\n"
    f"in {time.perf_counter() - start:.1f} seconds: "
    f"{rbm.n_iter_} passes over the data."
)

# %%
# Log-likelihood of held-out images
# ---------------------------------
# The log-likelihood is in nats (natural logarithm) per image; higher is
# better. It needs log Z. The sum Z has too many terms to be computed here,
# so log Z is estimated: ``score_samples`` uses the best estimate, ``score``
# the pessimistic one.

log_p = rbm.score_samples(X_test)
z_low, z_high = rbm.log_partition_bounds_
best, worst = log_p.mean() + rbm.log_partition_ - np.array([z_low, z_high])
p_black = (X_train.sum(0) + 0.5) / (len(X_train) + 1)


def log_p_pixels(X):
    """Log-likelihood of independent pixels."""
    return X @ np.log(p_black) + (1 - X) @ np.log(1 - p_black)


of_pixels = log_p_pixels(X_test)
gain = log_p - of_pixels
error = gain.std() / len(gain) ** 0.5
print(f"""
Log-likelihood of {len(X_test)} held-out images: mean in nats per image
  RBM                 {log_p.mean():6.2f}   from {worst:.2f} to {best:.2f}
  independent pixels  {of_pixels.mean():6.2f}   (Bernoulli, simplest model)
  gain                {gain.mean():+6.2f}   standard error {error:.2f}

log Z, by annealed importance sampling: {rbm.log_partition_:.2f} nats
  at least {z_low:.2f} nats, with a probability of 95 %
  at most  {z_high:.2f} nats, by annealing in both directions""")

# %%
# Anomalies
# ---------
# The held-out images are corrupted in three ways that do not occur in
# training. ``predict`` is -1 (outlier) below the 10 % quantile of the
# log-likelihood of training images. More than 10 % of the held-out images
# are flagged, because the training images fit the model better.

rng = np.random.default_rng(0)
corrupted = {
    "rotated by 180 degrees": X_test[:, ::-1],
    "10 % of pixels flipped": np.abs(
        X_test - (rng.random(X_test.shape) < 0.1)
    ),
    "pixels shuffled": rng.permuted(X_test, axis=1),
}


def auroc(real, fake):
    """Probability that a real image scores higher than a corrupted one."""
    is_real = np.repeat([1, 0], [len(real), len(fake)])
    return roc_auc_score(is_real, np.concatenate([real, fake]))


def share_of_outliers(X):
    return np.mean(rbm.predict(X) == -1)


print(f"""
Held-out images, real and corrupted: {len(X_test)} of each
                         log p, nats   flagged as    AUROC against real
                            (median)     outliers    RBM   indep. pixels""")
for name, X_bad in {"real": X_test, **corrupted}.items():
    log_p_bad = rbm.score_samples(X_bad)
    of_rbm = auroc(log_p, log_p_bad)
    by_pixels = auroc(of_pixels, log_p_pixels(X_bad))
    print(
        f"  {name:22} {np.median(log_p_bad):11.1f}"
        f" {share_of_outliers(X_bad):12.0%} {of_rbm:8.3f} {by_pixels:11.3f}"
    )
print("  (AUROC: 0.5 is chance, 1 is perfect)")

# %%
# The most anomalous real images, and the same images rotated:

lowest = np.argsort(log_p)[:5]
rotated = corrupted["rotated by 180 degrees"][lowest]
label = {1: "inlier", -1: "OUTLIER"}
print(f"""
The five most anomalous held-out images: log p in nats, outlier below
{rbm.offset_:.1f}
  digit        original             rotated""")
for number, *values in zip(
    digit_test[lowest],
    log_p[lowest],
    rbm.predict(X_test[lowest]),
    rbm.score_samples(rotated),
    rbm.predict(rotated),
    strict=True,
):
    real, real_label, fake, fake_label = values
    print(
        f"    {number}     {real:6.1f}  {label[real_label]:8}"
        f"     {fake:6.1f}  {label[fake_label]}"
    )

# %%
# Filters, samples, reconstructions and training curves
# -----------------------------------------------------
# The figure shows the weights of the hidden units, samples of the model,
# mean-field reconstructions of held-out images, and the history of
# training.

from skebm.inspection import RBMDisplay

display = RBMDisplay.from_estimator(
    rbm, X_test, image_shape=(8, 8), random_state=0
)
display.plot().figure_.savefig("digits_rbm.png", dpi=150)
print("\nFilters, samples and training curves: digits_rbm.png")
