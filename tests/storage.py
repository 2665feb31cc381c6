"""Ways to store a model and to have it back."""

import io
import pickle

import joblib
import skops.io


def by_pickle(model):
    return pickle.loads(pickle.dumps(model))


def by_joblib(model):
    file = io.BytesIO()
    joblib.dump(model, file)
    file.seek(0)
    return joblib.load(file)


def by_skops(model):
    data = skops.io.dumps(model)
    unknown = skops.io.get_untrusted_types(data=data)
    assert all(name.startswith("skebm.") for name in unknown), unknown
    return skops.io.loads(data, trusted=unknown)
