"""Hyper-parameters: ``net__`` names that live in one dict, and messages that say what to pass."""

from __future__ import annotations

from typing import Any

from sklearn.base import BaseEstimator

NET_PARAMS = (
    "optimizer",
    "lr",
    "max_epochs",
    "batch_size",
    "train_split",
    "callbacks",
    "verbose",
)
NET_PREFIXES = ("optimizer__", "callbacks__")


def check_net_params(params: dict[str, Any]) -> None:
    """Raise `ValueError` for a name that no net takes, with those it takes."""
    for name in params:
        if name not in NET_PARAMS and not name.startswith(NET_PREFIXES):
            raise ValueError(
                f"net_params has no {name!r}. It takes {', '.join(NET_PARAMS)}, and what starts "
                f"with {' or '.join(NET_PREFIXES)}; the module, its loss, the batches and the "
                "device are the estimator's own."
            )


def check_holders(estimator: Any, params: dict[str, Any]) -> None:
    """Raise `ValueError` for ``<object>__<name>`` where there is no object to set it on."""
    for name in params:
        owner, _, rest = name.partition("__")
        holder = params.get(owner, getattr(estimator, owner, None))
        if rest and owner in estimator._get_param_names() and not hasattr(holder, "set_params"):
            raise ValueError(
                f"{name} needs an object to be set on, but {owner}={holder!r}. "
                f"Pass one as {owner}= first."
            )


class NetParams(BaseEstimator):
    """Routes ``net__<name>`` to and from the dict ``net_params``, for clones and grid searches."""

    net_params: dict[str, Any] | None

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Get the parameters; with `deep` also those of the sampler and ``net__<name>``."""
        params = super().get_params(deep)
        net_params = params.get("net_params")
        if deep and isinstance(net_params, dict):
            params |= {f"net__{name}": value for name, value in net_params.items()}
        return params

    def set_params(self, **params: Any) -> Any:
        """Set parameters by name, ``net__<name>`` and ``<object>__<name>`` included."""
        net = {name[5:]: params.pop(name) for name in list(params) if name.startswith("net__")}
        check_holders(self, params)
        super().set_params(**params)
        if net:
            check_net_params(net)
            self.net_params = {**(self.net_params or {}), **net}
        return self


class SamplerSteps(BaseEstimator):
    """Routes ``sampler__n_steps``, a name that searches over samplers ask for, to `n_steps`.

    Samplers are kernels of one step; how many are taken is for who takes them.
    """

    n_steps: int

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Get the parameters; with `deep` also those of objects, and ``sampler__n_steps``."""
        params = super().get_params(deep)
        return params | {"sampler__n_steps": self.n_steps} if deep else params

    def set_params(self, **params: Any) -> Any:
        """Set parameters by name; ``sampler__n_steps`` is `n_steps`."""
        if "sampler__n_steps" in params:
            steps = params.pop("sampler__n_steps")
            if params.setdefault("n_steps", steps) != steps:
                raise ValueError("n_steps and sampler__n_steps are the same: pass one of them.")
        return super().set_params(**params)
