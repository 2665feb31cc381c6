"""Which callbacks of skorch a fit can serve, and what to pass instead of the others."""

from __future__ import annotations

from typing import Any

from skorch.callbacks import EpochScoring

# Losses that only fits with validation rows have.
OF_VALIDATION = ("valid_loss", "valid_loss_best")
HOLDS_OUT = "set early_stopping=True, which holds out a tenth of the rows"


def check_callbacks(net: Any) -> None:
    """Raise `ValueError` for callbacks of an initialised net that need what it does not have."""
    for _, callback in net.callbacks_:
        monitor, name = getattr(callback, "monitor", None), type(callback).__name__
        if net.train_split is None and monitor in OF_VALIDATION:
            raise ValueError(
                f"{name} monitors {monitor!r}, and this fit has no validation rows: {HOLDS_OUT}, "
                'or pass monitor="train_loss".'
            )
        if isinstance(callback, EpochScoring):
            _check_scoring(net, callback)


def _check_scoring(net: Any, callback: Any) -> None:
    """Raise `ValueError` for scores of predictions, or of rows that there are not."""
    if not callable(callback.scoring):
        raise ValueError(
            f"EpochScoring with scoring={callback.scoring!r} compares predictions with targets, "
            "which an energy does not have: pass a function scoring(net, rows, y) that returns a "
            "number; history_ has the losses."
        )
    if callback.on_train:
        raise ValueError(
            "EpochScoring(on_train=True) needs a dataset of skorch: pass a callback with a method "
            "on_epoch_end(net, dataset_train, **kwargs) instead."
        )
    if net.train_split is None:
        raise ValueError(
            f"EpochScoring scores validation rows, and this fit has none: {HOLDS_OUT}."
        )
