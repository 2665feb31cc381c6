"""A fit that fails leaves the estimator as it was."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any


def all_or_nothing(method: Callable[..., Any]) -> Callable[..., Any]:
    """Give an object its attributes back where the method raises.

    What was learned belongs together: a new base or scaling under the old weights would be another
    model.
    """

    @functools.wraps(method)
    def attempt(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = vars(self).copy()
        with contextlib.ExitStack() as undo:
            undo.callback(_give_back, self, before)
            result = method(self, *args, **kwargs)
            undo.pop_all()
        return result

    return attempt


def _give_back(owner: Any, attributes: dict[str, Any]) -> None:
    vars(owner).clear()
    vars(owner).update(attributes)
