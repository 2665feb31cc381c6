"""Random numbers of modules that know no generator, drawn from one that is passed.

Layers of torch initialise their weights from the global generator; dropout and the distributions of
torch draw from it. It is never touched: another thread would see it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

OPERATIONS = torch.ops.aten


class Drawing(TorchDispatchMode):
    """Gives a generator to every random operation of torch that has none, in this thread."""

    def __init__(self, generator: torch.Generator):
        super().__init__()
        self.generator = generator

    # torch's own versions write, beside the stack of this thread, flags that all threads share.

    def __enter__(self) -> Drawing:
        _push_mode(self)
        return self

    def __exit__(self, *error: Any) -> None:
        _pop_mode()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # it would import torch's compiler, which takes 1.5 seconds

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with_generator, is_random = _random_form(func)
        if not is_random or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        if with_generator is not None:
            return with_generator(*args, **kwargs | {"generator": self.generator})
        like = _LIKE.get(func)
        if like is not None:
            return like(torch.empty_like(args[0], **kwargs), generator=self.generator)
        if func is OPERATIONS.native_dropout.default:
            return _dropout(self.generator, *args, **kwargs)
        if _is_certain(func, args, kwargs):
            return func(*args, **kwargs)
        raise RuntimeError(
            f"{func} of torch draws from its global generator only, which random_state does not "
            "decide: replace that layer, for example by one with nn.Dropout."
        )


_LIKE = {
    OPERATIONS.rand_like.default: torch.Tensor.uniform_,
    OPERATIONS.randn_like.default: torch.Tensor.normal_,
}


@functools.cache
def _random_form(func: Any) -> tuple[Any, bool]:
    """The form of an operation that takes a generator, if there is one; whether it is random."""
    if any(argument.name == "generator" for argument in func._schema.arguments):
        return func, True
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return None, False
    own = {argument.name for argument in func._schema.arguments}
    for name in func.overloadpacket.overloads():
        other = getattr(func.overloadpacket, name)
        if {argument.name for argument in other._schema.arguments} == own | {"generator"}:
            return other, True
    return None, True


def _dropout(generator: torch.Generator, x: Any, p: float, train: bool | None) -> Any:
    """Dropout and its mask."""
    if train is False or not p:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = torch.empty_like(x).bernoulli_(1 - p, generator=generator)
    return x * mask / (1 - p) if p < 1 else torch.zeros_like(x), mask.bool()


def _is_certain(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an operation that may drop entries is asked to drop none."""
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    rates = [given.get(name, 0.0) for name in names if name in ("dropout_p", "dropout", "p")]
    return bool(rates) and not any(rates)


@contextlib.contextmanager
def draws_from(generator: torch.Generator) -> Iterator[None]:
    """Let every module draw from a generator in the block, those that know of none included."""
    with Drawing(generator):
        yield


@contextlib.contextmanager
def seed_modules(generator: torch.Generator) -> Iterator[None]:
    """Let every module draw from a new generator in the block, seeded by one draw of another.

    The other one then moves on by that draw, whatever the modules do.
    """
    draw = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    with draws_from(torch.Generator(generator.device).manual_seed(draw)):
        yield


def may_draw(module: nn.Module) -> bool:
    """Whether a module may draw random numbers when it is called for training.

    Layers of torch say so by what they are; those that are unknown may.
    """
    return any(map(_draws, module.modules()))


def _draws(module: nn.Module) -> bool:
    home = type(module).__module__
    if home.startswith(("skebm.", "zuko.", "torch.nn.utils.")):
        return False
    if not home.startswith("torch.nn.modules."):
        return True
    # Rates of dropout are attributes `p` or `dropout`; these two others draw without a rate.
    rates = [getattr(module, name, 0) for name in ("p", "dropout")]
    random = isinstance(module, nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d)
    return random or any(isinstance(rate, float | int) and rate > 0 for rate in rates)
