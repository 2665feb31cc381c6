"""A fit that fails leaves the estimator as it was."""

from __future__ import annotations

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
        try:
            return method(self, *args, **kwargs)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    return attempt
