"""Pickles: NumPy arrays instead of live torch objects, and the version that wrote them."""

from __future__ import annotations

import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from skebm._validation import resolve_device
from skebm.training.engine import EnergyNet


class Storable(BaseEstimator):
    """Stores ``net_`` as arrays: portable between devices, and to skops."""

    device: str
    _settings: Any

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__().copy()
        if "net_" in state:
            # NumPy arrays instead of live torch objects: portable between devices and to skops.
            state["net_"] = pack(state["net_"])
            state["_skebm_version"] = _version()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        packed = state.pop("net_", None)
        stored = state.pop("_skebm_version", None)
        super().__setstate__(state)
        if packed is None:
            return
        if stored != _version():
            warnings.warn(
                f"This model was stored by skebm {stored}, and this is {_version()}.",
                UserWarning,
                stacklevel=2,
            )
        generator = torch.Generator(self._device_at_hand())
        net = self._new_net(self._settings, generator, streaming=packed["streaming"])
        unpack(net.initialize(), packed)
        self.net_ = net

    def _device_at_hand(self) -> torch.device:
        """The device asked for, or the CPU where a stored model finds it missing."""
        try:
            return resolve_device(self.device)
        except ValueError:
            warnings.warn(
                f"device={self.device!r} is not available here; the model is loaded on the CPU.",
                UserWarning,
                stacklevel=3,
            )
            return torch.device("cpu")


def _version() -> str:
    try:
        return version("skebm")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "unknown"


def pack(net: EnergyNet) -> dict[str, Any]:
    """Everything that training goes on from, as NumPy arrays and plain values."""
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
    """Go back to a packed state, on the net's device."""
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
