"""Fits as tasks, which callbacks of scikit-learn follow from version 1.9 on.

A fit is a task, with a task for each epoch or for each estimator that it fits. Callbacks are set by
``estimator.set_callbacks(...)``; with an older scikit-learn there are none, and nothing is told.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

try:
    from sklearn.callback import CallbackSupportMixin
except ImportError:  # scikit-learn before 1.9

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """An estimator that takes no callbacks."""


class TasksMixin(CallbackSupportMixin):
    """An estimator whose fits are tasks.

    One that has further tasks in a fit begins it by :func:`begin_task`, once it knows how many.
    """

    _has_tasks = False


# From a fitted estimator, or one in training, to the attributes that make a fitted copy of it.
Attributes = Callable[[], dict[str, Any]]


class Task:
    """A task of a fit, whose begin and end are told to the callbacks of the estimator.

    It can be sent to another process, where an estimator is fitted for it.
    """

    def __init__(self, context: Any, estimator: Any, data: dict[str, Any]):
        self.context, self.estimator, self.data = context, estimator, data

    def begin(self) -> None:
        """Tell that the task begins."""
        self.context.call_on_fit_task_begin(estimator=self.estimator, **self.data)

    def end(self, attributes: Attributes | None = None) -> bool:
        """Tell that the task ends; whether a callback asks for no further one.

        `attributes` are computed if a callback asks for a fitted estimator.
        """
        more = {} if attributes is None else {"reconstruction_attributes": attributes}
        stop = self.context.call_on_fit_task_end(estimator=self.estimator, **self.data, **more)
        return bool(stop)

    @contextlib.contextmanager
    def fit_of(self, estimator: Any) -> Iterator[None]:
        """The task of a fit of another estimator, whose tasks become those of this one."""
        with self.context.propagate_callback_context(estimator):
            self.begin()
            yield
            self.end()


class FitTask:
    """The task of a fit: the call of an estimator's method with X, y and weights."""

    def __init__(self, estimator: Any, given: dict[str, Any]):
        weight = given.get("sample_weight")
        self.estimator = estimator
        self.data = {
            "X": given.get("X"),
            "y": given.get("y"),
            "metadata": None if weight is None else {"sample_weight": weight},
        }
        self.task: Task | None = None

    @property
    def has_callbacks(self) -> bool:
        """Whether there are callbacks to tell."""
        return bool(getattr(self.estimator, "_skl_callbacks", ()))

    def begin(self, n_tasks: int, *, in_order: bool = True) -> None:
        """Begin, with `n_tasks` further ones at most, one after the other if `in_order`."""
        begin_context = getattr(self.estimator, "_init_callback_context", None)
        if begin_context is None:
            return
        context = begin_context(max_subtasks=n_tasks, sequential_subtasks=in_order)
        self.task = Task(context, self.estimator, self.data)
        self.task.begin()

    def end(self) -> None:
        """End with the estimator, which is fitted."""
        if self.task is not None:
            self.task.end(dict)

    def part(self, name: str, number: int | None = None, data: dict[str, Any] | None = None) -> Any:
        """A further task, with the data of the fit or others; None where nobody is told of it.

        It has a number where such tasks have no order.
        """
        if self.task is None:
            return None
        context = self.task.context.subcontext(task_name=name, task_id=number)
        estimator = self.estimator if self.has_callbacks else None  # which may go to a worker
        return Task(context, estimator, self.data if data is None else data)


class Epochs:
    """The epochs of a training, each of which is a task.

    `attributes` are those of the estimator as if training had ended now.
    """

    def __init__(self, fit: FitTask, attributes: Attributes):
        self.fit, self.attributes = fit, attributes
        self.task: Task | None = None

    def begin(self) -> None:
        """Tell that an epoch begins."""
        self.task = self.fit.part("epoch")
        if self.task is not None:
            self.task.begin()

    def end(self) -> bool:
        """Tell that the epoch ends; whether a callback asks for the end of training."""
        return self.task is not None and self.task.end(self.attributes)


_CURRENT: ContextVar[FitTask | None] = ContextVar("fit", default=None)


def begin_task(n_tasks: int, *, in_order: bool = True) -> FitTask | None:
    """Begin the task of the fit that is running, with `n_tasks` further ones; None outside."""
    fit = _CURRENT.get()
    if fit is not None:
        fit.begin(n_tasks, in_order=in_order)
    return fit


def parts_of_fit(names: list[str]) -> list[Task | None]:
    """Begin the task of the fit that is running, and return its parts, which workers may share.

    Their data are not those of the fit, which would go to the workers, too.
    """
    fit = begin_task(len(names), in_order=False)
    return [None if fit is None else fit.part(name, k, {}) for k, name in enumerate(names)]


def fit_of(task: Task | None, estimator: Any) -> contextlib.AbstractContextManager[None]:
    """The fit of an estimator as a task, if there is one."""
    return contextlib.nullcontext() if task is None else task.fit_of(estimator)


def as_task(fit: Callable[..., Any]) -> Callable[..., Any]:
    """A method of fitting as a task, within which scikit-learn calls the callbacks' `teardown`."""
    _, *names = inspect.signature(fit).parameters

    @functools.wraps(fit)
    def running(estimator: Any, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        task = FitTask(estimator, given)
        token = _CURRENT.set(task)
        try:
            if not estimator._has_tasks:
                task.begin(0)
            result = fit(estimator, *args, **kwargs)
        finally:
            _CURRENT.reset(token)
        task.end()
        return result

    return running
