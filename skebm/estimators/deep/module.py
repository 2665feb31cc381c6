"""RBMs as layers of a network: linear maps and sigmoids with their weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from skebm.estimators.tables.columns import ColumnTable


def sigmoid_network(rbms: Sequence[Any], n_outputs: int | None) -> nn.Sequential:
    """Linear layers and sigmoids that compute what the RBMs' `transform` does, one after another.

    Parameters
    ----------
    rbms : sequence of RBMEstimator
        Fitted; the first takes X, each other one the features of the one below.
    n_outputs : int or None
        Number of outputs of a last linear layer, whose weights and biases are zero; None for none.

    Returns
    -------
    nn.Sequential
        float32, on the CPU; its weights are copies.

    Raises
    ------
    ValueError
        Where columns of X are categories.
    """
    layers: list[nn.Module] = []
    for weight, bias in [columns_folded(rbms[0]), *(parameters(rbm) for rbm in rbms[1:])]:
        layers += [linear(weight, bias), nn.Sigmoid()]
    if n_outputs is not None:
        layers.append(linear(np.zeros((n_outputs, rbms[-1].n_components_)), np.zeros(n_outputs)))
    return nn.Sequential(*layers)


def parameters(rbm: Any) -> tuple[np.ndarray, np.ndarray]:
    """Weights (H, d) and biases (H,) of hidden units on the rows of the energy, float64."""
    energy = rbm.energy_
    weight = energy.weight.detach().cpu().double().numpy()
    factor = energy.factor() if hasattr(energy, "factor") else None
    if factor is not None:  # statistics of real columns are multiples of their values
        weight = weight * factor.detach().cpu().double().numpy()
    return weight, energy.hidden_bias.detach().cpu().double().numpy()


def columns_folded(rbm: Any) -> tuple[np.ndarray, np.ndarray]:
    """Weights and biases on the columns of X, with their scaling and order folded in."""
    weight, bias = parameters(rbm)
    table = rbm._blueprint.table
    if isinstance(table, ColumnTable):
        if table.levels:
            names = [table.names[j] for j in table.levels]
            raise ValueError(
                f"Columns {names} are categories, of which a linear layer takes no codes: encode "
                "them first, as by OneHotEncoder, and fit the network to the result."
            )
        units, columns, n_bits = table.units, table.real, len(table.bits)
        low, width = (units.centre, units.scale) if columns else (np.zeros(0), np.ones(0))
        ordered = np.empty_like(weight)
        ordered[:, table.bits] = weight[:, :n_bits]
        ordered[:, columns] = weight[:, n_bits:]
        weight = ordered
    else:
        columns, low, width = table.scaling.columns, table.scaling.low, table.scaling.width
    scaled = weight[:, columns] / width
    weight = weight.copy()
    weight[:, columns] = scaled
    return weight, bias - scaled @ low


def linear(weight: np.ndarray, bias: np.ndarray) -> nn.Linear:
    """A linear layer with these parameters, (n_out, n_in) and (n_out,), as float32."""
    # Initial values would be drawn from the global generator.
    layer = nn.utils.skip_init(nn.Linear, weight.shape[1], weight.shape[0], dtype=torch.float32)
    with torch.no_grad():
        layer.weight.copy_(torch.as_tensor(weight))
        layer.bias.copy_(torch.as_tensor(bias))
    return layer
