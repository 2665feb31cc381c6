r"""Labels of frames as the last, categorical block of the frames of a temporal RBM."""

from __future__ import annotations

import torch
from torch import Tensor

from skebm.base.torchtools import softplus_sum
from skebm.energies.rbm.temporal import RowwiseRBM, Targets, TemporalEnergy


def label_logits(given: RowwiseRBM, x: Tensor, n_labels: int) -> Tensor:
    r"""log p of frames with each label given their past, up to functions of the frame or the past.

    .. math:: \log q(y) + (b + b_t)^\top y
        + \sum_j \log\bigl(1 + e^{(c + c_t + W t(x, y))_j}\bigr)

    Together with :func:`frame_terms` it is minus the free energy.

    Parameters
    ----------
    given : RowwiseRBM
        RBM of n frames, whose last block is the label.
    x : Tensor of shape (n, d)
        Frames, whatever their labels.
    n_labels : int
        K.

    Returns
    -------
    Tensor of shape (n, K)
        Differentiable.
    """
    rbm, labels = given.rbm, torch.eye(n_labels, dtype=x.dtype, device=x.device)
    field = given.hidden_field(with_first_label(x, n_labels)) - rbm.weight[:, -n_labels]
    own = rbm.parts[-1].log_prob(labels) + rbm.visible_bias[-n_labels:]
    own = own + given.biases.visible[:, -n_labels:]
    columns = rbm.weight[:, -n_labels:].unbind(1)
    return own + torch.stack([softplus_sum(field + column) for column in columns], 1)


def with_first_label(x: Tensor, n_labels: int) -> Tensor:
    """Frames (n, d) with the first label in place of theirs."""
    label = x.new_zeros(len(x), n_labels)
    label[:, 0] = 1.0
    return torch.cat([x[:, :-n_labels], label], 1)


def frame_terms(given: RowwiseRBM, x: Tensor, n_labels: int) -> tuple[Tensor, Tensor]:
    """Terms that :func:`label_logits` leaves out: of frame and past, and of the frame alone.

    They are b_t' t(x) and log q(x) + b' t(x), (n,) each. The second may be infinite far from all
    data.
    """
    rbm, first = given.rbm, with_first_label(x, n_labels)
    of_past = given.biases.visible[:, :-n_labels]
    label = rbm.parts[-1].log_prob(first[:, -n_labels:]) + rbm.visible_bias[-n_labels]
    with_past = (rbm.statistics(first)[:, :-n_labels] * of_past).sum(1)
    return with_past, -rbm.visible_energy(first) - label


def log_label_proba(energy: TemporalEnergy, targets: Targets, n_labels: int) -> Tensor:
    """log p(y given the frame and the past, labels included) of each label, exact, (m, K)."""
    given = RowwiseRBM(energy.rbm, targets.biases)
    return label_logits(given, targets.x, n_labels).log_softmax(1)


def hidden_lags(energy: TemporalEnergy, n_labels: int, label_order: int) -> Tensor:
    """Which entries of the lags are labels of more than `label_order` frames before, (K (d + 1),).

    Bool; the oldest lag first.
    """
    entry = torch.arange(energy.lag_visible.shape[1], device=energy.weight.device)
    lag, place = energy.order - entry // energy.n_entries, entry % energy.n_entries
    d = energy.domain.n_columns
    return (lag > label_order) & (place >= d - n_labels) & (place < d)


@torch.no_grad()
def forget_labels(energy: TemporalEnergy, n_labels: int, label_order: int) -> None:
    """Set the weights of labels of more than `label_order` frames before to zero."""
    hidden = hidden_lags(energy, n_labels, label_order)
    energy.lag_visible[:, hidden] = 0.0
    energy.lag_hidden[:, hidden] = 0.0
