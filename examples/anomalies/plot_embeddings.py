"""
Anomalous texts by their embeddings: docstrings
===============================================

An embedding turns a text or an image into a row of numbers, so that a
detector for tables can find the texts that do not belong. Here the texts
are docstrings, which need no download: those of scikit-learn are normal,
those of NumPy and of ``scipy.stats`` are anomalies. The embedding is latent
semantic analysis: the leading singular vectors of weighted word counts.
Features of a trained network can be used in the same way (see below).
"""

# %%
# Docstrings as texts
# -------------------

# sphinx_gallery_thumbnail_number = 1

import inspect
import textwrap

import numpy as np
import scipy.stats
from sklearn.utils.discovery import all_estimators, all_functions


def docstrings(named):
    """Docstrings of more than 200 characters by the names of objects."""
    texts = {
        name: inspect.getdoc(thing) or ""
        for name, thing in named
        if callable(thing)
    }
    return {name: text for name, text in texts.items() if len(text) > 200}


def of_module(module):
    return docstrings(
        (name, getattr(module, name)) for name in module.__all__
    )


normal = docstrings(all_estimators() + all_functions())
anomalies = {"NumPy": of_module(np), "scipy.stats": of_module(scipy.stats)}
sizes = ", ".join(
    f"{len(texts)} of {name}" for name, texts in anomalies.items()
)
print(f"{len(normal)} texts of scikit-learn; {sizes}")


def halves(seed):
    """Names of the training texts and of the other normal ones."""
    names = np.random.default_rng(seed).permutation(list(normal))
    return np.split(names, [len(names) // 2])


def texts_of(names):
    return [normal[name] for name in names]


# %%
# A pipeline, beside other detectors
# ----------------------------------
# The pipeline computes 64 columns by latent semantic analysis, scales rows
# to unit length, and fits the detector with its defaults. All detectors get
# the same columns; the distance to a neighbour is Euclidean. The table
# shows the AUROC in percent, as means over five splits of the normal texts
# with their standard deviations.

from sklearn.decomposition import TruncatedSVD
from sklearn.ensemble import IsolationForest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from sklearn.svm import OneClassSVM

from skebm import EnergyOutlierDetector


def embedding():
    words = TfidfVectorizer(sublinear_tf=True, stop_words="english")
    return make_pipeline(
        words, TruncatedSVD(64, random_state=0), Normalizer()
    )


def abnormality(detector, train, new):
    """Values of new rows by each method, higher for more unusual ones."""
    distances = NearestNeighbors().fit(train).kneighbors(new)[0]
    forest = IsolationForest(random_state=0).fit(train)
    return {
        "EnergyOutlierDetector": -detector.decision_function(new),
        "nearest neighbour": distances[:, 0],
        "5th neighbour": distances[:, 4],
        "IsolationForest": -forest.score_samples(new),
        "OneClassSVM": -OneClassSVM().fit(train).score_samples(new),
    }


aurocs = {}
for seed in range(5):
    train, new = map(texts_of, halves(seed))
    detector = make_pipeline(
        embedding(), EnergyOutlierDetector(random_state=0)
    ).fit(train)
    embed = detector[:-1]
    for kind, others in anomalies.items():
        rows = embed.transform([*new, *others.values()])
        is_anomaly = np.arange(len(rows)) >= len(new)
        values = abnormality(detector[-1], embed.transform(train), rows)
        for method, value in values.items():
            auroc = 100 * roc_auc_score(is_anomaly, value)
            of_method = aurocs.setdefault(method, {})
            of_method.setdefault(kind, []).append(auroc)
print(" " * 22, *(f"{kind:>12}" for kind in anomalies))
for method, of_method in aurocs.items():
    cells = (
        f"{np.mean(v):6.1f} ± {np.std(v, ddof=1):3.1f}"
        for v in of_method.values()
    )
    print(f"{method:22}", *cells)

# %%
# The AUROC of the nearest neighbour is within a point of that of the
# detector: a docstring often has a near copy in its package, such as that
# of the regressor for a classifier. Five near copies are rarer, so that the
# distance to the fifth neighbour does worse.
#
# Methods that consider the whole table rather than the neighbourhood of a
# row are misled. A text on another subject contains few of the words that
# distinguish texts on this subject from each other. It therefore lies near
# their mean, where an isolation forest and a one-class SVM of the default
# width expect the most normal rows. If rows are not of unit length, methods
# based on neighbours are misled too, because such a text is then near the
# origin.

# %%
# False alarms at a rate that is known
# ------------------------------------
# With ``method="conformal"`` at most a tenth of new normal texts are called
# outliers, whatever the embedding. For this guarantee the embedding must be
# a part of the estimator: the texts from which words and columns were
# learned are distributed differently from new ones, so that the threshold
# must not be set by them.

from skebm import ProductOfDensities

names_of_train, names_of_new = halves(0)
model = make_pipeline(embedding(), ProductOfDensities())
detector = EnergyOutlierDetector(
    model, method="conformal", contamination=0.1, random_state=0
)
detector.fit(texts_of(names_of_train))
new = texts_of(names_of_new)
groups = {"scikit-learn, new": new}
groups |= {kind: list(texts.values()) for kind, texts in anomalies.items()}
scores = {
    name: detector.decision_function(texts)
    for name, texts in groups.items()
}
for name, score in scores.items():
    print(f"{name:18} {np.mean(score < 0):4.0%} called outliers")

# %%
# The histograms show the log density above the threshold.

import matplotlib.pyplot as plt

every = np.concatenate(list(scores.values()))
low, high = np.quantile(every, [0.005, 0.995])
figure, ax = plt.subplots(figsize=(7, 3.2))
for name, score in scores.items():
    ax.hist(
        np.clip(score, low, high),
        np.linspace(low, high, 50),
        density=True,
        histtype="step",
        linewidth=1.8,
        label=name,
    )
ax.axvline(0, color="0.3", linestyle="--", linewidth=1, label="threshold")
ax.set_xlabel("log density above the threshold, nats")
ax.set_ylabel("share per nat")
ax.legend(loc="upper right")
plt.show()

# %%
# The most unusual texts
# ----------------------
# The lists contain the most unusual of the new docstrings of scikit-learn
# itself, and of all those of NumPy and ``scipy.stats``.


def most_unusual(texts, n=5):
    scores = detector.decision_function(list(texts.values()))
    return ", ".join(np.array(list(texts))[np.argsort(scores)[:n]])


of_sklearn = {name: normal[name] for name in names_of_new}
for kind, texts in ({"scikit-learn": of_sklearn} | anomalies).items():
    print(f"{kind}:", textwrap.fill(most_unusual(texts), 60))

# %%
# Images
# ------
# Images are treated in the same way, with the features before the last
# layer of a network that was trained on many images. With torchvision (not
# run here, because the weights must be downloaded)::
#
#     import torch
#     from sklearn.decomposition import PCA
#     from torchvision.models import ViT_B_16_Weights, vit_b_16
#
#     weights = ViT_B_16_Weights.DEFAULT
#     network = vit_b_16(weights=weights).eval()
#     network.heads = torch.nn.Identity()  # of a ResNet: network.fc
#     prepare = weights.transforms()  # resizes, crops and standardises
#
#     def embed(images):  # uint8 of shape (n, 3, height, width)
#         with torch.no_grad():
#             parts = images.split(64)
#             return torch.cat([network(prepare(x)) for x in parts]).numpy()
#
#     model = make_pipeline(Normalizer(), PCA(64), ProductOfDensities())
#     detector = EnergyOutlierDetector(model, method="conformal")
#     detector.fit(embed(images))
#     detector.p_values(embed(new_images))
#
# The network was not trained on these images, so that it can be outside the
# detector; what is learned from them, here the principal components,
# belongs inside. Sentences can be treated in the same way with any model
# that returns a vector for each sentence.
