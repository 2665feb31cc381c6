"""Storage of a trained net as NumPy arrays and plain values, for other devices and for skops."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from skebm.training.engine import EnergyNet


def package_version() -> str:
    """Installed version of skebm."""
    try:
        return version("skebm")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0+unknown"


def pack(net: EnergyNet) -> dict[str, Any]:
    """Everything that is needed to continue training, as NumPy arrays and plain values."""
    state = {name: arrays_of(value) for name, value in net.training_state().items()}
    return state | {"streaming": net.streaming}


def unpack(net: EnergyNet, packed: dict[str, Any]) -> None:
    """Restore a packed state on the net's device."""
    device = net.generator.device
    net.load_training_state(
        {name: tensors_of(value, device) for name, value in packed.items() if name != "streaming"}
    )


def arrays_of(tree: Any) -> Any:
    """Tensors in nested dicts and lists as NumPy arrays; a dict becomes a list of its items."""
    if isinstance(tree, Tensor):
        return tree.detach().cpu().numpy()
    if isinstance(tree, dict):
        return {"items": [[key, arrays_of(value)] for key, value in tree.items()]}
    if isinstance(tree, list | tuple):
        return [arrays_of(value) for value in tree]
    return tree


def tensors_of(tree: Any, device: torch.device) -> Any:
    """Undo :func:`arrays_of`."""
    if isinstance(tree, np.ndarray):
        return torch.as_tensor(tree.copy(), device=device)
    if isinstance(tree, dict):
        return {key: tensors_of(value, device) for key, value in tree["items"]}
    if isinstance(tree, list):
        return [tensors_of(value, device) for value in tree]
    return tree
