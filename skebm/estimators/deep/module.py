"""Layers of a network with the weights of hidden layers: linear maps and sigmoids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from skebm.estimators.tables.table import Table


class Map(NamedTuple):
    """Weights (n_out, n_in) and biases (n_out,) of a linear layer, float64."""

    weight: np.ndarray
    bias: np.ndarray

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor, factor: Tensor | None = None) -> Map:
        """From tensors; `factor` (n_in,) is what the weights' inputs are multiplied by, if any."""
        weight, bias = (part.detach().cpu().double() for part in (weight, bias))
        if factor is not None:
            weight = weight * factor.detach().cpu().double()
        return cls(weight.numpy(), bias.numpy())

    def on_columns(self, table: Table) -> Map:
        """The same of the columns of X, with their scaling and order folded in.

        `ValueError` where columns are categories.
        """
        if table.coding is not None:
            names = [table.coding.names[j] for j in table.coding.levels]
            raise ValueError(
                f"Columns {names} are categories, of which a linear layer takes no codes: encode "
                "them first, as by OneHotEncoder, and fit the network to the result."
            )
        weight, bias = np.empty_like(self.weight), self.bias
        for block, place in table.places():
            weight[:, block.columns] = self.weight[:, place]
            columns, low, width = block.scaling_of_columns()
            weight[:, columns] = weight[:, columns] / width
            bias = bias - weight[:, columns] @ low
        return Map(weight, bias)


def sigmoid_network(maps: Sequence[Map], n_outputs: int | None) -> nn.Sequential:
    """Linear layers, a sigmoid after each.

    Parameters
    ----------
    maps : sequence of Map
        From below.
    n_outputs : int or None
        Number of outputs of a last linear layer, whose weights and biases are zero; None for none.

    Returns
    -------
    nn.Sequential
        float32, on the CPU; its weights are copies.
    """
    layers: list[nn.Module] = []
    for weight, bias in maps:
        layers += [linear(weight, bias), nn.Sigmoid()]
    if n_outputs is not None:
        layers.append(linear(np.zeros((n_outputs, len(maps[-1].bias))), np.zeros(n_outputs)))
    return nn.Sequential(*layers)


def hidden_map(rbm: Any) -> Map:
    """Log-odds of the hidden units of a fitted RBM, of the rows of its energy."""
    energy = rbm.energy_
    factor = energy.factor() if hasattr(energy, "factor") else None
    return Map.of(energy.weight, energy.hidden_bias, factor)


def linear(weight: np.ndarray, bias: np.ndarray) -> nn.Linear:
    """A linear layer with these parameters, (n_out, n_in) and (n_out,), as float32."""
    # Initial values would be drawn from the global generator.
    layer = nn.utils.skip_init(nn.Linear, weight.shape[1], weight.shape[0], dtype=torch.float32)
    with torch.no_grad():
        layer.weight.copy_(torch.as_tensor(weight))
        layer.bias.copy_(torch.as_tensor(bias))
    return layer
