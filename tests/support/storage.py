"""Ways to store a model and to have it back."""

import io
import pickle

import joblib
import skops.io

import skebm


def by_pickle(model):
    return pickle.loads(pickle.dumps(model))


def by_joblib(model):
    file = io.BytesIO()
    joblib.dump(model, file)
    file.seek(0)
    return joblib.load(file)


def by_skops(model):
    return skebm.load(skops.io.dumps(model))
