"""RBMEstimator(hidden=...): the models of SubspaceRBM and SpikeSlabRBM, and what they refuse."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.utils import get_tags

from skebm import DeepBeliefNetwork, RBMEstimator, SpikeSlabRBM, SubspaceRBM
from skebm.estimators import SpikeSlab, Subspace
from skebm.objectives import Centering
from tests.support.tables import binary_rows, real_rows
from tests.support.tiers import named

FEW = {"n_iter": 3, "random_state": 0}
PAIRS = {
    "default subspaces": (RBMEstimator(hidden=Subspace()), SubspaceRBM(), binary_rows),
    "subspaces": (
        RBMEstimator(3, hidden=Subspace(2, features="all"), learning="cd"),
        SubspaceRBM(3, 2, features="all", learning="cd"),
        binary_rows,
    ),
    "subspaces of numbers": (
        RBMEstimator(3, hidden=Subspace(2)),
        SubspaceRBM(3, 2),
        real_rows,
    ),
    "spikes": (RBMEstimator(3, hidden=SpikeSlab()), SpikeSlabRBM(3), real_rows),
    "slabs": (
        RBMEstimator(3, hidden=SpikeSlab(features="slabs"), base="independent", learning="cd"),
        SpikeSlabRBM(3, features="slabs", base="independent", learning="cd"),
        real_rows,
    ),
}
each_pair = pytest.mark.parametrize(
    "pair", named(["default subspaces", "subspaces", "spikes"], PAIRS)
)


def subspaces(**params):
    return RBMEstimator(2, hidden=Subspace(2), **FEW | params)


def spikes(**params):
    return RBMEstimator(2, hidden=SpikeSlab(), **FEW | params)


# ------------------------------------------------------------------------------
# One body
# ------------------------------------------------------------------------------


@each_pair
def test_results_are_those_of_the_estimator_of_these_units(pair):
    one, other, rows = PAIRS[pair]
    X = rows()
    a, b = (clone(model).set_params(**FEW).fit(X) for model in (one, other))
    assert type(a.energy_) is type(b.energy_)
    for name in (*a._kind.arrays, "h_samples_", "offset_", "log_partition_", "base_name_"):
        assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    holes = np.where(np.random.default_rng(1).random(X.shape) < 0.2, np.nan, X)
    for name in ("score_samples", "energy", "transform", "predict"):
        for some in (X, holes):
            assert_array_equal(getattr(a, name)(some), getattr(b, name)(some), err_msg=name)
    assert_array_equal(a.sample(5, random_state=0), b.sample(5, random_state=0))
    assert_array_equal(a.impute(holes, random_state=0), b.impute(holes, random_state=0))
    assert_array_equal(a.get_feature_names_out().shape, (a.transform(X).shape[1],))


@each_pair
def test_parameters_after_a_fit_wait_for_the_next_one(pair):
    one, _, rows = PAIRS[pair]
    X = rows()
    model = clone(one).set_params(**FEW).fit(X)
    features, arrays = model.transform(X), {n: getattr(model, n) for n in model._kind.arrays}
    model.set_params(hidden="binary")
    assert_array_equal(model.transform(X), features)
    for name, value in arrays.items():
        assert_array_equal(getattr(model, name), value)
    assert_array_equal(pickle.loads(pickle.dumps(model)).transform(X), features)
    assert model.fit(X).intercept_hidden_.shape == (model.n_components_,)


def test_units_are_searched_over():
    grid = {"hidden": ["binary", Subspace(1), SpikeSlab()]}
    search = GridSearchCV(RBMEstimator(2, **FEW), grid, cv=2).fit(real_rows())
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    search = GridSearchCV(subspaces(), {"hidden__n_subspace": [1, 3]}, cv=2).fit(binary_rows())
    assert search.best_estimator_.components_.shape[1] in (1, 3)


def test_one_unit_of_each_gate_is_as_many_weights_as_a_binary_layer():
    found = RBMEstimator(3, hidden=Subspace(1), **FEW).fit(binary_rows())
    assert found.components_.shape == (3, 1, 6)
    assert found.intercept_units_.shape == (3, 1)


# ------------------------------------------------------------------------------
# What depends on the units
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "there", "absent"),
    [
        (RBMEstimator, ["pseudo_likelihood", "denoise"], ["intercept_gates_", "slab_mean_"]),
        (subspaces, ["pseudo_likelihood", "denoise"], ["intercept_hidden_", "filters_"]),
        (spikes, [], ["pseudo_likelihood", "denoise", "intercept_units_"]),
        (SpikeSlabRBM, [], ["pseudo_likelihood", "denoise", "intercept_units_"]),
    ],
)
def test_what_other_units_have_is_absent(make, there, absent):
    numbers = make in (spikes, SpikeSlabRBM)
    model = make().set_params(n_components=2, **FEW)
    for fitted in (False, True):
        for name in there:
            assert hasattr(model, name)
        for name in absent:
            assert not hasattr(model, name)
        if not fitted:
            model.fit(real_rows() if numbers else binary_rows())
    with pytest.raises(AttributeError, match="the model has|There are no"):
        getattr(model, absent[-1])
    assert get_tags(model).input_tags.sparse != numbers


@pytest.mark.parametrize("make", [subspaces, spikes])
def test_arrays_can_be_assigned(make):
    X = real_rows()
    model = make().fit(X)
    before = model.log_partition_
    for name in model._kind.arrays:
        with pytest.raises(ValueError, match="read-only"):
            getattr(model, name)[...] = 0
        setattr(model, name, 0.5 * getattr(model, name))
    assert model.log_partition_ != before
    with pytest.raises(ValueError, match="Expected an array of shape"):
        model.intercept_visible_ = np.zeros(2)


def test_joint_energies_of_spikes_sum_to_the_energy():
    X = real_rows()
    model = spikes().fit(X)
    states = [np.tile(h, (len(X), 1)) for h in np.ndindex(2, 2)]
    of_states = [-model.joint_energy(X, h) for h in states]
    assert_allclose(-np.logaddexp.reduce(of_states), model.energy(X), rtol=1e-5)
    odds = of_states[3] - of_states[1]  # of the first spike, beside a second one that is on
    assert_allclose(1 / (1 + np.exp(-odds)), model.transform(X)[:, 0], rtol=1e-4)


def test_joint_energies_of_subspaces_need_the_states_of_units():
    X = binary_rows()
    gates, units = np.ones((60, 2)), np.ones((60, 2, 2))
    assert np.isfinite(subspaces().fit(X).joint_energy(X, gates, units)).all()
    with pytest.raises(ValueError, match="S must hold the states"):
        subspaces().fit(X).joint_energy(X, gates)
    with pytest.raises(ValueError, match="S must be None"):
        RBMEstimator(2, **FEW).fit(X).joint_energy(X, gates, units)


def test_gibbs_steps_of_spikes_are_rows():
    X = real_rows()
    found = spikes().fit(X).gibbs(X)
    assert found.shape == X.shape
    assert (found != X).all()


# ------------------------------------------------------------------------------
# Refused, or reported
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"base": "chow-liu"}, "base='chow-liu'.*SpikeSlab"),
        ({"visible": "bernoulli"}, "visible='bernoulli'.*SpikeSlab"),
        ({"learning": "exact"}, 'learning="pcd"'),
        ({"learning": "ratio_matching"}, 'use learning="pcd"\\.$'),
        ({"categorical_features": [0]}, r"\['x0'\] hold categories"),
    ],
)
def test_settings_that_numbers_alone_cannot_have_are_refused(params, message):
    with pytest.raises(ValueError, match=message):
        spikes(**params).fit(np.round(real_rows()))


def test_sparse_rows_of_numbers_are_refused():
    with pytest.raises(TypeError, match="dense"):
        spikes().fit(sp.csr_matrix(binary_rows()))
    assert subspaces().fit(sp.csr_matrix(binary_rows())).n_components_ == 2


def test_what_spikes_do_not_use_is_reported():
    with pytest.warns(UserWarning, match="centering, because"):
        spikes(centering=Centering()).fit(real_rows())


def test_units_stay_while_training_goes_on():
    X = binary_rows()
    for other in ("binary", Subspace(3)):
        with pytest.raises(ValueError, match="hidden was Subspace"):
            subspaces(warm_start=True).fit(X).set_params(hidden=other).fit(X)
        with pytest.raises(ValueError, match="hidden was Subspace"):
            subspaces().partial_fit(X).set_params(hidden=other).partial_fit(X)


def test_a_binary_layer_has_no_parameters():
    with pytest.raises(ValueError, match="hidden__n_subspace cannot be set"):
        RBMEstimator().set_params(hidden__n_subspace=2)


@pytest.mark.parametrize("rbm", [SubspaceRBM(2, n_iter=1), subspaces(), spikes()])
def test_layers_of_a_deep_network_are_binary(rbm):
    with pytest.raises(ValueError, match="need binary hidden units"):
        DeepBeliefNetwork((3, 2), rbm=rbm).fit(binary_rows())
    with pytest.raises(ValueError, match="need binary hidden units"):
        DeepBeliefNetwork((3, 2), layer_params=[{}, {"hidden": Subspace()}]).fit(binary_rows())
