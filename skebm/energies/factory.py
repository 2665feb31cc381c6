"""How a network is made: of what is known of the rows, by a class or function and its arguments."""

from __future__ import annotations

import functools
import inspect
import math
from typing import Any, NamedTuple

import torch
from sklearn.base import BaseEstimator, clone
from torch import nn

from skebm.base.processes import seed_modules
from skebm.energies.whitening import LowRankWhitening, Whitening

POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)


class Spec(NamedTuple):
    """The specification by which a network is built.

    Attributes
    ----------
    shape : tuple of int
        Shape of a row: ``(d,)``, or ``(C, H, W)`` for images.
    generator : torch.Generator
        Source of the initial weights.
    dtype : torch.dtype
        Precision of the weights.
    noise_levels : bool
        Whether the network is called as ``network(x, log_sigma)``, with the logarithm of a noise
        level for each row, (n,), or as ``network(x)``.
    whitening : Whitening, LowRankWhitening or None
        The whitening by the base, where it has one.
    n_classes : int or None
        Number of classes, for a network that returns logits, (n, n_classes), instead of one number
        per row.
    confining : bool
        Whether there is neither a base nor bounds to keep rows from infinity, so that the energy of
        the untrained network has to grow with the distance.
    """

    shape: tuple[int, ...]
    generator: torch.Generator
    dtype: torch.dtype = torch.float32
    noise_levels: bool = False
    whitening: Whitening | LowRankWhitening | None = None
    n_classes: int | None = None
    confining: bool = False


class NetworkOf(BaseEstimator):
    """A class or function that makes a network, with arguments of its own.

    Estimators make it where arguments are set by name: ``network=Net, network__hidden=64`` in
    ``set_params`` and in searches, as in skorch. Arguments that are not set keep their defaults.

    A network is made anew at each fit. An argument named ``spec`` is the :class:`Spec` of the rows,
    ``n_features`` the number of columns, and ``n_classes`` the number of classes of a classifier.
    Where none of these is taken, a function gets the `Spec` as its first argument, and so does a
    class whose first argument has no default.

    Parameters
    ----------
    module : class or callable
        What makes the torch module.
    **arguments : dict
        Arguments of `module` by name; names it does not take raise a `ValueError`.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from skebm.energies import NetworkOf, Spec
    >>> class Net(nn.Module):
    ...     def __init__(self, n_features, hidden=32):
    ...         super().__init__()
    ...         self.layers = nn.Sequential(
    ...             nn.Linear(n_features, hidden), nn.SiLU(), nn.Linear(hidden, 1)
    ...         )
    ...
    ...     def forward(self, x):
    ...         return self.layers(x)
    >>> NetworkOf(Net, hidden=8).build(Spec((3,), torch.Generator())).layers[0]
    Linear(in_features=3, out_features=8, bias=True)
    """

    def __init__(self, module: Any, **arguments: Any):
        check_arguments(module, arguments)
        self.module = module
        self.arguments = arguments

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The class or function, and the arguments that are set."""
        return {"module": self.module, **self.arguments}

    def set_params(self, **params: Any) -> NetworkOf:
        """Set arguments by name; `ValueError` for one that the class or function does not take."""
        module = params.pop("module", self.module)
        check_arguments(module, params)
        self.module, self.arguments = module, self.arguments | params
        return self

    def __sklearn_clone__(self) -> NetworkOf:
        copies = {name: clone(value, safe=False) for name, value in self.arguments.items()}
        return type(self)(self.module, **copies)

    def build(self, spec: Spec) -> nn.Module:
        """The network for rows of a specification."""
        module = self.module
        if hasattr(module, "build"):  # a class of settings, such as MLP
            return module_of(module(**self.arguments).build, spec)
        return module_of(module, spec, self.arguments)


def arguments_of(make: Any) -> dict[str, inspect.Parameter] | None:
    """Parameters of a class or callable by name; None where Python does not know them."""
    try:
        return dict(inspect.signature(make).parameters)
    except (TypeError, ValueError):
        return None


def check_arguments(make: Any, arguments: dict[str, Any]) -> None:
    """Raise `ValueError` for arguments that a class or callable does not take."""
    known = arguments_of(make)
    if known is None or any(p.kind is p.VAR_KEYWORD for p in known.values()):
        return
    for name in arguments:
        if name not in known:
            taken = [repr(one) for one in known if one not in ("spec", "n_features", "n_classes")]
            raise ValueError(
                f"Invalid parameter {name!r} of network {name_of(make)}, which takes "
                f"{', '.join(taken) or 'none'}."
            )


def name_of(make: Any) -> str:
    """Name of a class or callable."""
    make = make.func if isinstance(make, functools.partial) else make
    return getattr(make, "__name__", None) or type(make).__name__


def is_class(make: Any) -> bool:
    """Whether a callable is a class, perhaps with some arguments fixed."""
    return isinstance(make.func if isinstance(make, functools.partial) else make, type)


def module_of(make: Any, spec: Spec, arguments: dict[str, Any] | None = None) -> Any:
    """What a class or function makes of a specification; `TypeError` where a class cannot."""
    arguments = dict(arguments or {})
    try:
        with seed_modules(spec.generator):
            return make(*_positional_arguments(make, spec, arguments), **arguments)
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        if not is_class(make):
            raise
        raise TypeError(_advice(make, error)) from error


def _positional_arguments(make: Any, spec: Spec, arguments: dict[str, Any]) -> tuple[Any, ...]:
    """Positional arguments of a class or function; what it takes by name joins `arguments`."""
    known = arguments_of(make)
    if known is None:
        return (spec,)
    by_name = {"spec": spec, "n_features": math.prod(spec.shape)}
    if spec.n_classes is not None:
        by_name["n_classes"] = spec.n_classes
    free = [p for p in known.values() if p.name not in arguments]
    named = {p.name for p in free if p.name in by_name and p.kind is not p.POSITIONAL_ONLY}
    if named & {"spec", "n_features"}:
        arguments |= {name: by_name[name] for name in named}
        return ()
    first = next((p for p in free if p.kind in POSITIONAL), None)
    if first is None or (is_class(make) and first.default is not first.empty):
        arguments |= {name: by_name[name] for name in named}
        return ()
    return (spec,)


def _advice(make: Any, error: Exception) -> str:
    """What to write instead of a constructor that does not take a `Spec`."""
    name, known = name_of(make), arguments_of(make) or {}
    others = [
        str(p.replace(annotation=p.empty))
        for p in list(known.values())[1:]
        if p.name not in ("spec", "n_features", "n_classes")
    ]
    constructor = ", ".join(["self", "n_features", *others])
    return (
        f"network={name} is a class that cannot be made with what is known of the rows ({error}). "
        f"Write its constructor as def __init__({constructor}), where n_features becomes the "
        f"number of columns, pass what it needs as network=NetworkOf({name}, ...) or "
        f"network__<name>, or pass an object, network={name}(...)."
    )
