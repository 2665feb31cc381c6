"""The contract of `network`: what users write of their own works in every neural model.

A class, a function of the `Spec`, an object, one output or a column of outputs; arguments by
``network__<name>``; what cannot be a network is refused with what to write instead.
"""

import functools
import math
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from torch import nn

from skebm import (
    ConditionalDensity,
    ContrastiveDivergenceDensity,
    FlowContrastiveDensity,
    JEMClassifier,
    NCEDensity,
    NeuralDensity,
    ScoreMatchingDensity,
)
from skebm.energies import MLP, Conv, Spec, build_network
from skebm.estimators.neural.model import NeuralMixin
from skebm.partition import ImportanceSampling
from tests.support.discovery import walk
from tests.support.oracle import seeded
from tests.support.tiers import named, only_full

few = {"n_iter": 1, "random_state": 0}
drawn = few | {"partition": ImportanceSampling(200)}
MODELS = {
    "score matching": ScoreMatchingDensity(base="gaussian", **drawn),
    "nce": NCEDensity(noise="gaussian", **drawn),
    "contrastive divergence": ContrastiveDivergenceDensity(base="gaussian", **drawn),
    "flow contrastive": FlowContrastiveDensity(n_flow_steps=2, **drawn),
    "any objective": NeuralDensity(objective="exact", base="gaussian", **drawn),
    "classifier": JEMClassifier(base="gaussian", **drawn),
    "conditional": ConditionalDensity(0, base="linear", **few),
}
QUICK = ("score matching", "conditional")  # models, of which the first is quickest to fit
DENSITIES = [name for name in MODELS if name != "classifier"]
N, D = 30, 2


def rows(shape=(N, D)):
    return np.random.default_rng(0).normal(size=shape)


def fit(model, X=None):
    X = rows() if X is None else X
    return model.fit(X, np.arange(len(X)) % 3)


def layers(n_features, hidden, n_outputs):
    return nn.Sequential(nn.Linear(n_features, hidden), nn.Tanh(), nn.Linear(hidden, n_outputs))


class Layers(nn.Module):
    """Rows to a column of outputs; `squeezed` to a number for each row."""

    def __init__(self, layers, squeezed=False):
        super().__init__()
        self.layers, self.squeezed = layers, squeezed

    def forward(self, x):
        found = self.layers(x)
        return found.squeeze(1) if self.squeezed and found.shape[1] == 1 else found


class OfSpec(Layers):
    def __init__(self, spec, hidden=4):
        super().__init__(layers(spec.shape[0], hidden, spec.n_classes or 1), squeezed=True)


class OfColumns(Layers):
    def __init__(self, n_features, hidden=4, n_classes=1):
        super().__init__(layers(n_features, hidden, n_classes))


class Lazy(Layers):
    """What a class without the number of columns is in torch."""

    def __init__(self, hidden=4, n_classes=1):
        super().__init__(
            nn.Sequential(nn.LazyLinear(hidden), nn.Tanh(), nn.Linear(hidden, n_classes))
        )


def of_spec(spec, hidden=4):
    return layers(spec.shape[0], hidden, spec.n_classes or 1)


OWN = {
    "class of the spec": OfSpec,
    "class of the columns": OfColumns,
    "class without either": Lazy,
    "class with an argument fixed": functools.partial(OfColumns, hidden=4),
    "function of the spec": of_spec,
}
WITH_ARGUMENTS = [name for name in OWN if "fixed" not in name]


def width(model):
    """Units of the hidden layer of a fitted network."""
    linear = [m for m in model.energy_.network.modules() if isinstance(m, nn.Linear)]
    return linear[0].out_features


def test_every_model_with_a_network_is_here():
    named = {cls for cls in walk(NeuralMixin) if "network" in cls._get_param_names()}
    assert {type(model) for model in MODELS.values()} >= named


# ------------------------------------------------------------------------------
# What works
# ------------------------------------------------------------------------------


# The first tier has every kind of network with the quickest fit, and every model with one kind.
EACH = [
    *[("score matching", kind) for kind in OWN],
    *[(name, "class of the columns") for name in MODELS if name != "score matching"],
    *[
        only_full(name, kind)
        for name in MODELS
        for kind in OWN
        if name != "score matching" and kind != "class of the columns"
    ],
]


@pytest.mark.parametrize(("name", "kind"), EACH)
def test_a_class_or_a_function_is_a_network(name, kind):
    model = fit(clone(MODELS[name]).set_params(network=OWN[kind]))
    assert width(model) == 4
    assert np.isfinite(model.energy(rows())).all()
    # Weights are new at each fit, and depend on the random state alone.
    again = fit(clone(model))
    assert again.energy(rows()).tolist() == model.energy(rows()).tolist()


@pytest.mark.parametrize("squeezed", [False, True], ids=["column", "numbers"])
@pytest.mark.parametrize("name", DENSITIES)
def test_an_object_is_a_network_with_one_output(name, squeezed):
    model = clone(MODELS[name]).set_params(network=Layers(layers(D, 5, 1), squeezed))
    assert width(fit(model)) == 5
    assert model.energy(rows()).shape == (N,)
    stored = pickle.loads(pickle.dumps(model))
    assert stored.energy(rows()).tolist() == model.energy(rows()).tolist()


def test_an_object_with_an_output_for_each_class_is_a_classifier():
    model = fit(clone(MODELS["classifier"]).set_params(network=layers(D, 5, 3)))
    assert model.predict_proba(rows()).shape == (N, 3)


@pytest.mark.parametrize("name", named(QUICK, DENSITIES))
def test_a_column_of_outputs_is_the_same_model_as_numbers(name):
    network = layers(D, 5, 1)
    column, numbers = (
        fit(clone(MODELS[name]).set_params(network=Layers(network, squeezed)))
        for squeezed in (False, True)
    )
    np.testing.assert_array_equal(column.energy(rows()), numbers.energy(rows()))


@pytest.mark.parametrize("kind", WITH_ARGUMENTS)
@pytest.mark.parametrize("name", named(QUICK[:1], MODELS))
def test_arguments_are_set_by_name(name, kind):
    """As in skorch: get_params lists them once they are set, and copies keep them."""
    model = clone(MODELS[name]).set_params(network=OWN[kind])
    assert not [key for key in model.get_params() if key.startswith("network__")]
    model.set_params(network__hidden=6)
    assert model.get_params()["network__hidden"] == 6
    assert clone(model).get_params()["network__hidden"] == 6
    assert model.get_params()["network__module"] is OWN[kind]
    assert width(fit(model)) == 6
    both = clone(MODELS[name]).set_params(network__hidden=7, network=OWN[kind])
    assert width(fit(both)) == 7
    assert width(fit(both.set_params(network__hidden=5))) == 5


@pytest.mark.parametrize("name", named(QUICK[:1], DENSITIES))
def test_searches_set_arguments(name):
    model = clone(MODELS[name]).set_params(network=OfColumns)
    search = GridSearchCV(model, {"network__hidden": [3, 5]}, cv=2, error_score="raise")
    search.fit(rows())
    assert width(search.best_estimator_) == search.best_params_["network__hidden"]
    assert model.network is OfColumns


def test_a_class_of_settings_stands_for_its_defaults():
    model = fit(clone(MODELS["score matching"]).set_params(network=MLP))
    assert width(model) == 128
    assert repr(model.set_params(network__hidden_sizes=(3,)).network) == "MLP(hidden_sizes=(3,))"
    assert build_network(Conv, Spec((1, 4, 4), seeded())).layers[0].out_channels == 32


def test_arguments_are_shown():
    model = ScoreMatchingDensity(OfColumns).set_params(network__hidden=64)
    assert "network=NetworkOf(hidden=64" in repr(model)


def test_lazy_layers_draw_from_the_generator_of_the_network():
    before = torch.get_rng_state()
    one, two = (build_network(Lazy, Spec((3,), seeded(k))).network.layers[0].weight for k in (1, 1))
    assert torch.equal(one, two)
    assert torch.equal(torch.get_rng_state(), before)


# ------------------------------------------------------------------------------
# What is refused
# ------------------------------------------------------------------------------


class OfTwo(Layers):
    def __init__(self, width, depth, hidden=4):
        super().__init__(layers(width, hidden, 1))


class Nan(Layers):
    """Not finite for rows in some places."""

    def forward(self, x):
        return self.layers(x) + x[:, :1].log()


class Constant(Layers):
    """Holds a matrix that does not follow the weights to another precision."""

    def __init__(self):
        super().__init__(layers(D, 4, 1))
        self.rotation = torch.eye(D)

    def forward(self, x):
        return self.layers(x @ self.rotation)


class Double(Layers):
    def forward(self, x):
        return super().forward(x).double()


BAD = {
    "class that needs more": (OfTwo, TypeError, r"__init__\(self, n_features, depth, hidden=4\)"),
    "nan at rows": (Nan(layers(D, 4, 1)), ValueError, "returns nan for .* before training"),
    "several outputs": (layers(D, 4, 2), ValueError, r"\(2, 2\): end it with a layer of one unit"),
    "no tensor": (lambda spec: nn.LSTM(D, 1), ValueError, "as a tensor .* returned tuple"),
    "other precision": (Double(layers(D, 4, 1)), ValueError, "returned float64 .*register_buffer"),
    "no buffer": (Constant, ValueError, "log Z is computed in float64: .*register_buffer"),
    "no module": (lambda spec: math.pi, TypeError, "must build a torch.nn.Module"),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("name", named(QUICK, DENSITIES))
def test_what_is_no_network_is_refused_with_the_remedy(name, kind):
    network, error, message = BAD[kind]
    model = clone(MODELS[name]).set_params(network=network)
    with pytest.raises(error, match=message):
        fit(model)
    assert not hasattr(model, "net_")


@pytest.mark.parametrize("name", MODELS)
def test_an_argument_that_a_network_does_not_take_is_refused(name):
    model = clone(MODELS[name])
    with pytest.raises(ValueError, match="'hiden' of network OfColumns, which takes 'hidden'"):
        model.set_params(network=OfColumns, network__hiden=3)
    with pytest.raises(ValueError, match="object of Sequential.*pass the class"):
        model.set_params(network=layers(D, 4, 1), network__hidden=3)


@pytest.mark.parametrize("name", MODELS)
def test_images_ask_for_a_network_of_images(name):
    remedy = "reshape" if name == "conditional" else r"network=Conv\(\)"
    with pytest.raises(ValueError, match=f"dim 4.*{remedy}"):
        fit(clone(MODELS[name]), rows((N, 1, 4, 4)))
