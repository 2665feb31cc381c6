"""What a fitted classifier does that is a density as well."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from skebm._validation import check_is_fitted
from skebm.base.checks import whole_number
from skebm.energies import NeuralEnergy
from skebm.estimators._any_methods import AnyMethods
from skebm.estimators._real_methods import LEAST_CHAINS


class JEMMethods(AnyMethods):
    """Classes of rows, rows of classes; mixed into the classifier."""

    classes_: np.ndarray
    _codes: Any
    _energies: Any
    _image_shape: Any

    def logits(self, X: Any) -> np.ndarray:
        """Logits of all classes: log p(x, y) up to what all classes of all rows share but log q(x).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        rows = self._fitted_rows(X)
        return self._map(rows, logits_of).double().numpy()

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each class, p(y | x), in the order of `classes_`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        logits = self.logits(X)
        share = np.exp(logits - logits.max(1, keepdims=True))
        return share / share.sum(1, keepdims=True)

    def decision_function(self, X: Any) -> np.ndarray:
        """Logits; of two classes their difference, the log-odds of the second.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_classes), or (n_samples,) of two classes
        """
        logits = self.logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict(self, X: Any) -> np.ndarray:
        """Most likely class of each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        place = self.logits(X).argmax(1)  # checks that the model is fitted
        return self.classes_[place]

    def joint_energy(self, X: Any, y: Any) -> np.ndarray:
        r"""Energy of rows and classes, :math:`-\log q(x) - \mathrm{logits}_y(x)`, in nats.

        Minus log p(x, y) up to `log_partition_`; :meth:`energy` is minus the logarithm of the
        sum of :math:`e^{-E(x, y)}` over classes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,), or a label
            Classes of the rows, or one for all.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        rows = self._fitted_rows(X)
        codes = self._codes(y, len(rows))
        logits = self._map(rows, logits_of).double()
        own = logits[torch.arange(len(rows)), torch.as_tensor(codes)]
        return self._energies(rows) + (logits.logsumexp(1) - own).numpy()

    def sample(  # type: ignore[override]  # y comes second, as everywhere
        self,
        n_samples: int = 1,
        y: Any = None,
        random_state: Any = None,
        *,
        given: Any = None,
        n_steps: int = 100,
    ) -> np.ndarray:
        """Draw rows of p(x), or of p(x | y).

        As :meth:`ContrastiveDivergenceDensity.sample`; chains of a class start at draws of the
        base, or at rows that training knew, that the class likes, and follow its energy:
        approximate, exact as draws and steps grow.

        Parameters
        ----------
        n_samples : int, default=1
        y : label, array-like of shape (n_samples,) or None, default=None
            Class of all rows, or of each; None draws from p(x).
        random_state : int, RandomState instance or None, default=None
            None draws from NumPy's global generator.
        given : array-like of shape (n_features,) or None, default=None
            A row whose numbers are held, and whose NaN are drawn; without y.
        n_steps : int, default=100
            Steps of the chains, after as many that tune the sampler.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            In the units of the data.
        """
        if y is None:
            return super().sample(n_samples, random_state, given=given, n_steps=n_steps)
        check_is_fitted(self)
        if given is not None:
            raise ValueError("Pass y or given: rows of a class are drawn as a whole.")
        whole_number("n_samples", n_samples, 1)
        whole_number("n_steps", n_steps, 1)
        codes, generator = self._codes(y, n_samples), self._generator(random_state)
        found = np.empty((n_samples, *self.row_shape_))
        for code in np.unique(codes):
            here = codes == code
            energy, n = self._energy_of(int(code)), int(here.sum())
            drawn = self._draw(energy, max(n, LEAST_CHAINS), generator, n_steps)
            found[here] = self._to_units(drawn[:n])
        return found

    def _energy_of(self, code: int) -> NeuralEnergy:
        """The energy of p(x | y)."""
        energy = self.energy_
        network: Any = energy.network
        shape = self._image_shape
        of_class = network.given(code)
        return NeuralEnergy(of_class, energy.domain, energy.base, image_shape=shape).eval()

    def _shares(self, energy: Any, known: Tensor) -> Tensor:
        """Rows that training knew count by how likely they are of the class."""
        with torch.no_grad():
            return (self.energy_(known) - energy(known)).double().softmax(0)


def logits_of(energy: NeuralEnergy, x: Tensor) -> Tensor:
    """Logits (n, K) of an energy's classifier."""
    network: Any = energy.network
    return network.classifier(energy.as_input(x))
