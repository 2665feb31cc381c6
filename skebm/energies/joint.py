r"""Joint energies of classifiers, E(x, y) = -log q(x) - logits_y(x) (Grathwohl et al. 2020)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from skebm.base.energy import ValueAndInputGrad, value_and_input_grad_by_autograd


class ClassMarginal(nn.Module):
    r"""The correction of a base by a classifier: minus the log-sum-exp of its logits.

    .. math:: f(x) = -c \log \sum_y e^{\mathrm{logits}_y(x)}
        \quad\text{or, of one class,}\quad
        f(x) = (1 - c) \log \sum_y e^{\mathrm{logits}_y(x)} - \mathrm{logits}_y(x)

    With a base q the former is the energy of :math:`p(x) = \sum_y p(x, y)` [1]_, the latter that of
    :math:`p(x \mid y)`. Adding a function of x to all logits changes both, but not
    :math:`p(y \mid x)`. The power c has the effect of adding a multiple of their log-sum-exp: with
    c = 1 the model is a joint energy-based model, and with c = 0 p(x) is q.

    Parameters
    ----------
    classifier : nn.Module
        From rows to logits, (n, K).
    label : int or None, default=None
        Index of the class among the logits; None is the sum over all classes.
    power : float, default=1
        c.

    References
    ----------
    .. [1] Grathwohl et al. (2020), "Your classifier is secretly an energy based model and you
       should treat it like one", ICLR, section 3, equations 4 to 6.

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import MLP, ClassMarginal, Spec
    >>> spec = Spec((2,), torch.Generator().manual_seed(0), n_classes=3)
    >>> network = ClassMarginal(MLP((8,)).build(spec))
    >>> network.classifier(torch.zeros(5, 2)).shape
    torch.Size([5, 3])
    >>> -network(torch.zeros(5, 2))[0]  # log of the number of classes
    tensor(1.0986, grad_fn=<NegBackward0>)
    """

    def __init__(self, classifier: nn.Module, label: int | None = None, *, power: float = 1.0):
        super().__init__()
        self.classifier, self.label, self.power = classifier, label, power

    def given(self, label: int) -> ClassMarginal:
        """The correction for one class, with the same classifier."""
        return ClassMarginal(self.classifier, label, power=self.power)

    def at(self, power: float) -> ClassMarginal:
        """The correction with another power, with the same classifier."""
        return ClassMarginal(self.classifier, self.label, power=power)

    def of_logits(self, logits: Tensor) -> Tensor:
        """f, (n,), from logits (n, K)."""
        total = logits.logsumexp(1)
        if self.label is None:
            return -self.power * total
        return (1 - self.power) * total - logits[:, self.label]

    def forward(self, x: Tensor) -> Tensor:
        return self.of_logits(self.classifier(x))

    def value_and_input_grad(self, x: Tensor) -> ValueAndInputGrad:
        """Value and gradient with respect to x."""
        explicit: Any = getattr(self.classifier, "grad_of_logits", None)
        if explicit is not None:
            return explicit(x, self._head)
        return value_and_input_grad_by_autograd(self, x)

    def _head(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """f and its gradient with respect to the logits."""
        share = logits.softmax(1)
        if self.label is None:
            return self.of_logits(logits), -self.power * share
        grad = (1 - self.power) * share
        grad[:, self.label] -= 1.0
        return self.of_logits(logits), grad
