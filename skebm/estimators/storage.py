"""Storage of a trained net as NumPy arrays and plain values, for other devices and for skops."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skebm.training.engine import EnergyNet


def installed_version() -> str:
    """Installed version of skebm."""
    try:
        return version("skebm")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "unknown"


def pack(net: EnergyNet) -> dict[str, Any]:
    """Everything that is needed to continue training, as NumPy arrays and plain values."""
    return {
        "weights": arrays_of(net.module_.state_dict()),
        "state": arrays_of(net.module_.pack(net.state_)),
        "optimizer": arrays_of(net.optimizer_.state_dict()["state"]),
        "generator": arrays_of(net.generator.get_state()),
        "seed": net.seed_,
        "learning_rates": [group["lr"] for group in net.optimizer_.param_groups],
        "lr_scale": net.lr_scale_,
        "history": net.history.to_list(),
        "n_restarts": net.n_restarts_,
        "streaming": net.streaming,
    }


def unpack(net: EnergyNet, packed: dict[str, Any]) -> None:
    """Restore a packed state on the net's device."""
    device = net.generator.device
    net.module_.load_state_dict(tensors_of(packed["weights"], device))
    net.run_.state = net.module_.unpack(tensors_of(packed["state"], device))
    stored = net.optimizer_.state_dict()
    stored["state"] = tensors_of(packed["optimizer"], device)
    net.optimizer_.load_state_dict(stored)
    for group, lr in zip(net.optimizer_.param_groups, packed["learning_rates"], strict=True):
        group["lr"] = lr
    net.seed_, net.lr_scale_ = packed["seed"], packed["lr_scale"]
    generator = tensors_of(packed["generator"], torch.device("cpu"))
    if generator.shape == net.generator.get_state().shape:  # else it was another kind of device
        net.generator.set_state(generator)
    net.history = type(net.history)(packed["history"])
    net.n_restarts_ = packed["n_restarts"]


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
