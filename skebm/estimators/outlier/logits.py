"""The energy of a classifier: what its logits say of the rows that it was trained on."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
import torch
from scipy.special import expit, log_softmax, logsumexp
from sklearn.base import BaseEstimator
from sklearn.neural_network import MLPClassifier
from torch import nn

from skebm._validation import Interval
from skebm.base import sampling
from skebm.estimators.classifiers import ProbabilisticClassifierMixin
from skebm.estimators.queries.densities import input_of_last_step, last_step

# Rows that a torch module is given at a time.
BLOCK = 1000
# Sum of the exponentials of outputs that are normalised, to within rounding.
TOLERANCE = 1e-4
ACTIVATIONS = {
    "identity": lambda x: x,
    "logistic": expit,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
}


class LogitEnergy(BaseEstimator):
    r"""How large the logits of a classifier are: minus its energy, higher for normal rows.

    .. math:: -E(x) = T \log \sum_{k=1}^K e^{f_k(x) / T}

    Logits :math:`f_k` that were trained for the classes alone are large for rows like those of the
    training, as the cross-entropy raises them there [1]_. It is no log-likelihood: nothing
    normalises it, and an architecture may give large logits to rows far away. A model of the rows,
    such as :class:`JEMClassifier` with ``statistic="log_density"``, is trained for it. Of a
    :class:`JEMClassifier` this is the part of log p(x) that corrects the base, before its power is
    chosen: among images it may tell what the base does not.

    It is the statistic ``"logit_energy"`` of :class:`EnergyOutlierDetector`; as an object it has a
    temperature, and it may be called with any classifier and rows.

    Parameters
    ----------
    temperature : float, default=1.0
        T. The larger it is, the more all classes count.

    See Also
    --------
    EnergyOutlierDetector

    References
    ----------
    .. [1] Liu, Wang, Owens and Li (2020), "Energy-based out-of-distribution detection", NeurIPS,
       equations 3 and 5.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skebm import EnergyOutlierDetector
    >>> from skebm.estimators import LogitEnergy
    >>> X, y = load_wine(return_X_y=True)
    >>> classifier = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    >>> LogitEnergy()(classifier, X[:2]).round(2)
    array([6.39, 4.76])
    >>> detector = EnergyOutlierDetector(
    ...     classifier, statistic=LogitEnergy(temperature=2.0), prefit=True, method="conformal"
    ... ).fit(X)
    >>> detector.predict(X[:2])
    array([1, 1])
    """

    _parameter_constraints: dict = {
        "temperature": [Interval(Real, 0, None, closed="neither")],
    }

    def __init__(self, temperature=1.0):
        self.temperature = temperature

    def __call__(self, estimator: Any, X: Any) -> np.ndarray:
        """Minus the energy of rows, (n,), in units of the logits.

        Parameters
        ----------
        estimator : object
            A fitted classifier with ``decision_function``, scikit-learn's ``MLPClassifier``,
            :class:`JEMClassifier`, a classifier of skorch or a torch module whose outputs are
            logits, or a pipeline or search that ends in one.
        X : {array-like, frame, tensor} of shape (n_samples, ...)

        Returns
        -------
        ndarray of shape (n_samples,)

        Raises
        ------
        TypeError
            If there are no logits, as of trees, or if the classifier is an RBM, which has a density
            and no other energy.
        ValueError
            If outputs of a network are (log) probabilities, whose energy is 0 for all rows.
        """
        self._validate_params()
        logits = class_logits(estimator, X)
        t = float(self.temperature)
        found: np.ndarray = t * logsumexp(logits / t, axis=1)
        return found


def class_logits(estimator: Any, X: Any) -> np.ndarray:
    """Logits of the classes, (n, K); of two classes by one number d they are -d / 2 and d / 2."""
    if isinstance(estimator, nn.Module):
        return _of_module(estimator, X)
    before, final = last_step(estimator)
    check_has_logits(final)
    X = input_of_last_step(before, X)
    if hasattr(final, "_network_logits"):
        return np.asarray(final._network_logits(X))
    if isinstance(final, MLPClassifier):
        return _two_sided(_of_perceptron(final, X))
    if hasattr(final, "decision_function"):
        return _two_sided(_for_each_class(final, np.asarray(final.decision_function(X))))
    return _check_logits(_array(final.forward(X)))


def check_has_logits(estimator: Any) -> None:
    """Raise `TypeError` for an estimator without logits."""
    final = last_step(estimator, into_detectors=False)[1]
    if hasattr(final, "_network_logits"):  # a joint model
        return
    if isinstance(final, ProbabilisticClassifierMixin):
        raise TypeError(
            f"{type(final).__name__} is a density of its rows, of which the energy is known: use "
            "statistic='log_density'."
        )
    is_net = hasattr(final, "forward") and hasattr(final, "module")
    if not (hasattr(final, "decision_function") or is_net) and not isinstance(final, MLPClassifier):
        raise TypeError(
            f"statistic='logit_energy' needs a classifier with logits, and {type(final).__name__} "
            "has no decision_function. Use statistic='max_proba', or a linear "
            "model, a network or boosted trees."
        )


def _two_sided(found: np.ndarray) -> np.ndarray:
    if found.ndim > 1 and found.shape != (len(found), 1):
        return found
    half = found.reshape(len(found)) / 2
    return np.column_stack([-half, half])


def _for_each_class(classifier: Any, found: np.ndarray) -> np.ndarray:
    n_classes = len(getattr(classifier, "classes_", ()))
    if found.ndim == 2 and n_classes not in (0, found.shape[1]):
        raise TypeError(
            f"decision_function of {type(classifier).__name__} has {found.shape[1]} columns for "
            f"{n_classes} classes: logits need one for each. Pass decision_function_shape='ovr'."
        )
    return found


def _of_perceptron(model: MLPClassifier, X: Any) -> np.ndarray:
    """Inputs of the last activation, from the public weights; `predict_proba` checks X."""
    model.predict_proba(X)
    hidden = np.asarray(X, dtype=np.float64)
    activation = ACTIVATIONS[model.activation]
    last = len(model.coefs_) - 1
    for number, (weight, bias) in enumerate(zip(model.coefs_, model.intercepts_, strict=True)):
        hidden = hidden @ weight + bias
        if number < last:
            hidden = activation(hidden)
    return np.asarray(hidden)


def _of_module(module: nn.Module, X: Any) -> np.ndarray:
    """Outputs of a torch module in ``eval()`` mode, which it then leaves as it was."""
    like = next(module.parameters(), torch.empty(0))
    x = torch.as_tensor(X if isinstance(X, torch.Tensor) else np.asarray(X))
    x = x.to(like.device, like.dtype if x.is_floating_point() else None)
    with sampling(module), torch.no_grad():
        found = np.concatenate([_array(module(block)) for block in x.split(BLOCK)])
    return _check_logits(found)


def _array(outputs: Any) -> np.ndarray:
    first = outputs[0] if isinstance(outputs, tuple) else outputs
    return first.detach().cpu().double().numpy()


def _check_logits(found: np.ndarray) -> np.ndarray:
    """Outputs (n, K) of a network, unless they are probabilities or logs of these."""
    found = _two_sided(found)
    if found.ndim != 2:
        raise TypeError(f"Outputs of the network have shape {found.shape}: logits are (n, K).")
    sums = found.sum(1), np.exp(log_softmax(found, axis=1) - found).max(1)
    are_proba = (found >= 0).all() and np.allclose(sums[0], 1, atol=TOLERANCE)
    if are_proba or np.allclose(sums[1], 1, atol=TOLERANCE):
        raise ValueError(
            "Outputs of the network are probabilities, or their logarithms, which sum to 1 for all "
            "rows: let the module return logits, and use CrossEntropyLoss."
        )
    return found
