"""The energy of classifiers, by their logits."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from skorch import NeuralNetClassifier
from torch import nn

from skebm import EnergyOutlierDetector, JEMClassifier, RBMClassifier
from skebm.estimators import LogitEnergy
from tests.support.tiers import leading

X, Y = load_iris(return_X_y=True)
X = StandardScaler().fit_transform(X)


def network(n_classes=3, last=None):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, n_classes)]
    return nn.Sequential(*layers, *([] if last is None else [last]))


def by_torch(logits, t):
    logits = torch.as_tensor(logits, dtype=torch.float64)
    return t * torch.logsumexp(logits / t, 1).numpy()


@pytest.mark.parametrize("t", [1.0, 0.1, 1000.0])
def test_it_is_the_log_sum_exp_of_logits_at_a_temperature(t):
    model = LogisticRegression().fit(X, Y)
    expected = by_torch(model.decision_function(X), t)
    assert_allclose(LogitEnergy(t)(model, X), expected, rtol=1e-12)
    module = network()
    module.train()
    found = LogitEnergy(t)(module, X)
    assert all(one.training for one in module.modules())
    with torch.no_grad():
        logits = module.eval()(torch.as_tensor(X, dtype=torch.float32))
    assert_allclose(found, by_torch(logits, t), rtol=1e-6)
    assert_array_equal(LogitEnergy(t)(module, torch.as_tensor(X)), found)


@pytest.mark.parametrize("activation", leading(1, ["relu", "tanh", "logistic", "identity"]))
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_class_logits_a_perceptron_have_its_probabilities(activation, n_classes):
    from skebm.estimators.outlier.logits import class_logits

    rows = n_classes > Y
    model = MLPClassifier((5, 4), activation=activation, max_iter=30, random_state=0)
    model.fit(X[rows], Y[rows])
    found = log_softmax(class_logits(model, X), axis=1)
    assert_allclose(found, model.predict_log_proba(X), atol=1e-6)


def test_two_classes_are_alike():
    """The energy does not depend on which of two classes is the first."""
    rows = Y < 2
    found = [
        LogitEnergy()(LogisticRegression().fit(X[rows], labels), X)
        for labels in (Y[rows], 1 - Y[rows])
    ]
    assert_allclose(*found, rtol=1e-4)


def test_a_classifier_of_skorch_and_pipelines():
    net = NeuralNetClassifier(network(), criterion=nn.CrossEntropyLoss, verbose=0).initialize()
    net.partial_fit(X.astype(np.float32), Y)
    expected = by_torch(net.forward(X.astype(np.float32)), 1.0)
    assert_allclose(LogitEnergy()(net, X.astype(np.float32)), expected, rtol=1e-6)
    scaled = make_pipeline(StandardScaler(), LogisticRegression()).fit(5 * X, Y)
    search = GridSearchCV(scaled, {"logisticregression__C": [1.0]}).fit(5 * X, Y)
    assert_allclose(LogitEnergy()(search, 5 * X), LogitEnergy()(scaled, 5 * X))


def test_a_detector_holds_its_level_and_finds_other_digits():
    images, digits = load_digits(return_X_y=True)
    known = digits < 7
    train, new = images[known][:800], images[known][800:]
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    detector = EnergyOutlierDetector(
        classifier, statistic="logit_energy", method="conformal", random_state=0
    ).fit(train, digits[known][:800])
    assert (detector.predict(new) == -1).mean() < 0.2
    scores = detector.score_samples(np.vstack([new, images[~known]]))
    is_other = np.repeat([0, 1], [len(new), (~known).sum()])
    assert roc_auc_score(is_other, -scores) > 0.75
    with pytest.raises(ValueError, match="target y is None"):
        clone(detector).fit(train)
    again = clone(detector).set_params(statistic=LogitEnergy())
    again.set_params(statistic__temperature=2.0)
    assert again.statistic.temperature == 2.0
    fitted = EnergyOutlierDetector(
        detector.estimator_, statistic=LogitEnergy(2.0), prefit=True, random_state=0
    ).fit(train)
    assert_allclose(fitted.score_samples(new), LogitEnergy(2.0)(detector.estimator_, new))


def test_a_joint_model_has_the_logits_of_its_network():
    """Before its power: what corrects the base in log p(x) is power times their log-sum-exp."""
    model = JEMClassifier(base="gaussian", n_iter=3, random_state=0).fit(X, Y)
    found = LogitEnergy()(model, X)
    base = JEMClassifier(base="gaussian", n_iter=0, random_state=0).fit(X, Y)
    correction = model.score_samples(X) - base.score_samples(X)
    centred = correction - correction.mean()
    assert_allclose(centred, model.power_ * (found - found.mean()), atol=2e-5)
    detector = EnergyOutlierDetector(model, statistic="logit_energy", prefit=True).fit(X)
    assert_allclose(detector.score_samples(X), found)
    assert_allclose(np.exp(found), np.exp(model._network_logits(X)).sum(1), rtol=1e-6)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (RandomForestClassifier(3), "no decision_function"),
        (RBMClassifier(2, n_iter=1), "log_density"),
        (SVC(decision_function_shape="ovo"), "'ovr'"),
    ],
)
def test_classifiers_without_logits_are_refused(model, message):
    labels = np.arange(len(X)) % 4
    with pytest.raises(TypeError, match=message):
        EnergyOutlierDetector(model, statistic="logit_energy", random_state=0).fit(X, labels)


def test_boosted_trees_have_logits():
    model = GradientBoostingClassifier(n_estimators=5, random_state=0).fit(X, Y)
    assert_allclose(LogitEnergy()(model, X), by_torch(model.decision_function(X), 1.0))


@pytest.mark.parametrize("last", [nn.Softmax(1), nn.LogSoftmax(1)])
def test_normalised_outputs_are_no_logits(last):
    with pytest.raises(ValueError, match="return logits"):
        LogitEnergy()(network(last=last), X)


@pytest.mark.parametrize("temperature", [0.0, -1.0, np.nan, "hot"])
def test_bad_temperatures(temperature):
    with pytest.raises(ValueError, match="temperature"):
        LogitEnergy(temperature)(network(), X)


def test_bad_rows():
    model = LogisticRegression().fit(X, Y)
    detector = EnergyOutlierDetector(model, statistic="logit_energy", prefit=True).fit(X)
    for bad in (np.full((2, 4), np.nan), X[:, :3], np.full((2, 4), np.inf)):
        with pytest.raises(ValueError, match="NaN|features|infinity"):
            detector.predict(bad)
    with pytest.raises(TypeError, match="n, K"):
        LogitEnergy()(nn.Unflatten(1, (2, 2)), X)
