"""The training engine: a skorch net whose module is the objective."""

from __future__ import annotations

import copy
import functools
import math
import opcode
import time
from collections.abc import Callable
from typing import Any

import torch
from skorch import NeuralNet
from skorch.callbacks import Callback, EarlyStopping
from skorch.helper import predefined_split
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.optim.swa_utils import AveragedModel

from skebm._validation import warn
from skebm.base import (
    Batch,
    Energy,
    Loss,
    Objective,
    SamplingError,
    SettingWarning,
    TrainingWarning,
    sampling,
)
from skebm.base.objective import FusedSteps, weighted_mean
from skebm.base.processes import Epochs, Notice, may_draw, progress_bar, repeat, threads
from skebm.base.processes.modes import TorchModes
from skebm.base.torchtools import SGD, searches_steps
from skebm.partition.trajectory import TrajectoryRecorder
from skebm.training.callbacks import check_callbacks
from skebm.training.distributed import (
    ALONE,
    DataParallel,
    Group,
    Ranks,
    check_same,
    collective,
    current_group,
    of_rows,
    shows_progress,
)
from skebm.training.guard import (
    ENOUGH_STEPS,
    MOST_LOST,
    MOST_WORK,
    N_ASSESSMENTS,
    Completion,
    DivergenceError,
    Guard,
    NoFurtherGainError,
    copy_weights,
    gain_of_a_pass,
    still_rising,
    weights_of,
)
from skebm.training.resume import Resume, settings_of
from skebm.training.rows import Batches, Rows
from skebm.training.selection import (
    GAIN,
    THE_BASE,
    WORTH_A_WARNING,
    Assessment,
    Gain,
    LogRatioOf,
    assess,
    is_kept,
    is_worth_a_warning,
)

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Run:
    """State that changes at every batch, kept outside the net, whose attributes are slow to set."""

    state: Any = None
    # During a fit, the objective's own steps, or those of several processes; and its epochs, if
    # callbacks of scikit-learn are told of them.
    steps: FusedSteps | None = None
    parallel: DataParallel | None = None
    epochs: Epochs | None = None


class Clock:
    """Seconds of a training that may take so many of them, with those of its assessments."""

    def __init__(self, seconds: float):
        self.seconds, self.began = seconds, time.perf_counter()

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return self.seconds < math.inf

    def share_spent(self) -> float:
        """Fraction of the time that is over, at most 1; 0 without a limit."""
        return min(1.0, (time.perf_counter() - self.began) / self.seconds) if self.limited else 0.0

    def is_over(self) -> bool:
        """Whether the time is over."""
        return self.share_spent() == 1.0


class WeightAverage:
    """Average of the weights over epochs: the mean at first, then exponential with `decay`.

    Between epochs the module holds the average, so that validation, early stopping and an
    interrupted fit use it; training resumes from the trained weights.
    """

    def __init__(self, module: nn.Module, decay: float):
        self.module, self.decay = module, decay
        self.trained: list[Tensor] | None = None
        self.mean: AveragedModel | None = None

    def resume(self) -> None:
        """Restore the trained weights."""
        if self.trained is not None:
            copy_weights(self.trained, weights_of(self.module))

    def _start(self) -> AveragedModel:
        least = 1 - self.decay
        return AveragedModel(
            self.module,
            avg_fn=lambda mean, new, n: mean + (new - mean) * max(least, 1 / (float(n) + 1)),
        )

    def state(self) -> dict[str, Any] | None:
        """The average and the trained weights; None before the first epoch."""
        if self.mean is None:
            return None
        return {"mean": self.mean.state_dict(), "trained": self.trained}

    def load(self, state: dict[str, Any] | None) -> None:
        """Restore what :meth:`state` returned."""
        if state is not None:
            self.mean, self.trained = self._start(), state["trained"]
            self.mean.load_state_dict(state["mean"])

    def restart(self) -> None:
        """Begin anew with the weights of the module."""
        self.trained = self.mean = None

    def show(self) -> None:
        """Add the trained weights to the average, and write the average into the module."""
        if not self.decay:
            return
        if self.mean is None:
            self.mean = self._start()
        self.trained = [w.clone() for w in weights_of(self.module)]
        self.mean.update_parameters(self.module)
        copy_weights(weights_of(self.mean.module), weights_of(self.module))


def plain_step(optimizer: torch.optim.Optimizer) -> Callable[[], None] | None:
    """Plain gradient descent without torch's bookkeeping: 3 instead of 13 microseconds per step.

    None if the optimizer does anything else.
    """
    if type(optimizer) not in (SGD, torch.optim.SGD) or len(optimizer.param_groups) != 1:
        return None
    (group,) = optimizer.param_groups
    if any(group[name] for name in ("momentum", "weight_decay", "maximize", "differentiable")):
        return None
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return None
    params = group["params"]

    def step() -> None:
        torch._foreach_add_(params, [p.grad for p in params], alpha=-group["lr"])

    return step


def step_with_version(optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    """The step of an optimizer, after which torch knows that the parameters have changed.

    Fused kernels do not increase version counters, by which energies recognise whether stored
    values are still valid.
    """
    groups = optimizer.param_groups
    if not any(group.get("fused") for group in groups):
        return optimizer.step
    params = [p for group in groups for p in group["params"]]

    def step() -> None:
        optimizer.step()
        for p in params:
            increment_version(p)

    return step


def energies_with_limits(module: nn.Module) -> list[Energy]:
    """Trained energies of a module whose parameters have limits."""
    return [
        part
        for part in module.modules()
        if isinstance(part, Energy)
        and type(part).hold_within_limits is not Energy.hold_within_limits
        and any(p.requires_grad for p in part.parameters())
    ]


def line_search_update(
    module: Objective,
    optimizer: torch.optim.Optimizer,
    run: Run,
    generator: torch.Generator,
    notify: Callable[[Batch], None],
) -> Callable[[Batch], Loss]:
    """An update whose optimizer evaluates the objective several times, as L-BFGS does."""
    energies = energies_with_limits(module)

    def update(batch: Batch) -> Loss:
        last: dict[str, Any] = {}

        def closure() -> Tensor:
            with torch.no_grad():
                loss = module.gradients_with_random_layers(batch, run.state, generator)
            if loss.value is None:
                raise TypeError(
                    f"{type(module).__name__} has no value for a line search; "
                    "use an optimizer that needs the gradient alone."
                )
            notify(batch)
            last["loss"] = loss
            return loss.value

        if getattr(optimizer, "coordinates", False) is None:  # it takes some, and has none
            optimizer.coordinates = module.coordinates(batch)  # type: ignore[attr-defined]
        optimizer.step(closure)  # type: ignore[arg-type]
        for energy in energies:
            energy.hold_within_limits()
        run.state = last["loss"].state
        return last["loss"]

    return update


def update_by_fused_steps(
    steps: FusedSteps, run: Run
) -> tuple[Callable[[Batch], Loss], Callable[[], None]]:
    """An update by steps that hold weights and state themselves, and a write-back function."""
    unknown = Loss(None, None)

    def update(batch: Batch) -> Loss:
        steps(batch)
        return unknown

    def finish() -> None:
        run.state = steps.finish()

    return update, finish


def nothing() -> None:
    """Do nothing: an update that changes weights and state directly has nothing to write back."""


# Batches between two checks for divergence, each of which synchronises with the device.
CHECK_EVERY = 500
# Learning rate below which its size is not why training diverges.
TINY_RATE = 1e-5


def weight_sum(module: nn.Module) -> list[float]:
    """Sums by which processes compare the weights with which they start."""
    return [float(w.double().square().sum()) for w in weights_of(module)]


def ends_training(error: KeyboardInterrupt) -> bool:
    """Whether a callback raised `KeyboardInterrupt` at the end of an epoch, as skorch's do to stop.

    Ctrl-C may arrive in a callback too, but then the innermost frame is not at a ``raise``.
    """
    trace, at_end, raised = error.__traceback__, False, False
    while trace is not None:
        code = trace.tb_frame.f_code
        at_end = at_end or code.co_name == "on_epoch_end"
        raised = opcode.opname[code.co_code[trace.tb_lasti]] == "RAISE_VARARGS"
        trace = trace.tb_next
    return at_end and raised


class NoCriterion(nn.Module):
    """Placeholder: skorch requires a criterion, but here the module is the loss."""


class Progress(Callback):
    """A progress bar over the epochs of a fit, with the diagnostics of the last epoch."""

    def on_train_begin(self, net: Any, **kwargs: Any) -> None:
        self.bar_ = progress_bar(
            total=net.max_epochs, unit="epoch", desc=type(net.module_.energy).__name__
        )

    def on_epoch_end(self, net: Any, **kwargs: Any) -> None:
        row = net.history[-1]
        shown = ("train_loss", "valid_loss", "energy_gap", "reconstruction_error", "log_likelihood")
        numbers = {name: f"{row[name]:.4g}" for name in shown if name in row}
        self.bar_.total = net.max_epochs  # which held-out rows may have doubled
        self.bar_.set_postfix(numbers, refresh=False)  # `update` decides when to redraw
        self.bar_.update(len(net.history) - net.n_before_ - self.bar_.n)

    def on_train_end(self, net: Any, **kwargs: Any) -> None:
        self.bar_.update(len(net.history) - net.n_before_ - self.bar_.n)  # the one that ended it
        self.bar_.close()


class EnergyNet(NeuralNet):
    """skorch net that trains an objective on rows that stay on the device.

    Parameters
    ----------
    module : Objective
        The loss; holds the energy.
    generator : torch.Generator
        The only source of randomness.
    schedule : callable or None
        Factor of the learning rate as a function of the fraction of epochs done.
    averaging : float in [0, 1)
        Decay per epoch of the weights' moving average; 0 keeps the last weights.
    max_restarts : int
        Number of roll-backs after divergence before `DivergenceError` is raised.
    validation : Rows or None
        Validation rows.
    stop_on : {"train_loss", "valid_loss"} or None
        Loss monitored by early stopping.
    patience : int
        Epochs without an improvement of at least `tol` after which training stops.
    tol : float
        Least improvement of the loss that counts, in its units.
    streaming : bool
        Whether the net is trained by `partial_fit`.
    max_time : float
        Seconds after which training ends; infinite for none.
    most_epochs : int
        Number of epochs to which `max_epochs` is doubled while held-out rows gain.
    on_interrupt : {"raise", "return"}
        What an estimator does when Ctrl-C has ended training: raise `KeyboardInterrupt`, or warn
        and return.
    trajectory : Trajectory or None
        Models that are kept along training.
    """

    history: Any
    max_epochs: int

    def __init__(
        self,
        module: Objective,
        criterion: Any = NoCriterion,
        *,
        generator: torch.Generator,
        schedule: Callable[[float], float] | None = None,
        averaging: float = 0.0,
        max_restarts: int = 10,
        validation: Rows | None = None,
        stop_on: str | None = None,
        patience: int = 10,
        tol: float = 1e-4,
        streaming: bool = False,
        max_time: float = math.inf,
        most_epochs: int = 0,
        on_interrupt: str = "raise",
        trajectory: Any = None,
        **kwargs: Any,
    ):
        self.generator, self.schedule, self.averaging = generator, schedule, averaging
        self.max_restarts, self.validation = max_restarts, validation
        self.stop_on, self.patience, self.tol = stop_on, patience, tol
        self.streaming, self.on_interrupt = streaming, on_interrupt
        self.max_time, self.most_epochs, self.trajectory = max_time, most_epochs, trajectory
        if validation is not None:
            kwargs.setdefault("train_split", predefined_split(validation))
        kwargs.setdefault("train_split", None)
        super().__init__(module, criterion, **kwargs)

    # ---------------------------------------------------------------- what skorch builds

    @property
    def _default_callbacks(self) -> list[tuple[str, Any]]:
        default: list[tuple[str, Any]] = []
        if self.stop_on is not None and self.max_epochs:
            stopper = EarlyStopping(
                self.stop_on,
                patience=self.patience,
                threshold=self.tol,
                threshold_mode="abs",
                load_best=self.stop_on == "valid_loss",
                sink=lambda message: None,
            )
            default.append(("early_stopping", stopper))
        if shows_progress(self.verbose):
            default.append(("progress", Progress()))
        return default

    def initialize(self) -> EnergyNet:
        super().initialize()
        self.run_, self.n_restarts_, self.lr_scale_ = Run(), 0, 1.0
        self.held_out_: Rows | None = None
        self.log_ratios_: LogRatioOf | None = None
        self.n_assessments_ = N_ASSESSMENTS
        self.judges_: tuple[Rows, LogRatioOf | None] | None = None
        self.completion_: Completion | None = None  # where rows have missing entries
        self.interrupted_, self.interruption_ = False, ""
        self.group_: Group = ALONE
        self.average_ = WeightAverage(self.module_, self.averaging)
        self.seed_ = self.generator.initial_seed()
        asked = self.trajectory
        self.trajectory_: TrajectoryRecorder | None = None
        if asked is not None:
            self.trajectory_ = TrajectoryRecorder(**asked.get_params(), seed=self.seed_)
        return self

    def check_data(self, X: Any, y: Any = None) -> None:
        if not isinstance(X, Rows):
            raise TypeError("EnergyNet trains on Rows.")

    def get_iterator(self, dataset: Any, training: bool = False) -> Batches:
        rows, subset = dataset, None
        if isinstance(dataset, torch.utils.data.Subset):
            rows, subset = dataset.dataset, torch.as_tensor(dataset.indices)
        found = Batches(rows, self.batch_size, self.generator if training else None, subset)
        if self.run_.parallel is not None and found.divisible(self.group_.size):
            found.part = self.group_.rank, self.group_.size
        return found

    def replace(self, module: Any) -> None:
        """Replace the module, as if training had not begun; the history is kept."""
        self.module_ = module.eval()
        self.initialize_optimizer()
        self.average_ = WeightAverage(module, self.averaging)
        self.run_.state, self.trajectory_ = None, None

    def hold_out(
        self,
        rows: Rows | None,
        log_ratios: LogRatioOf | None = None,
        n_times: int = N_ASSESSMENTS,
        reference: str = THE_BASE,
    ) -> None:
        """Set held-out rows, on which training is monitored, and how they assess a model.

        Without `log_ratios`, the objective's monitor assesses the model after each epoch; otherwise
        these do so, `n_times` per fit. `reference` names what the log ratios are to.
        """
        self.held_out_, self.log_ratios_ = rows, None if rows is None else log_ratios
        self.n_assessments_, self.reference_ = n_times, reference

    def judge_by(self, rows: Rows, log_ratios: LogRatioOf | None) -> None:
        """Set the rows that judge the weights that early stopping keeps.

        Without `log_ratios`, the objective's monitor does.
        """
        self.judges_ = rows, log_ratios

    @property
    def state_(self) -> Any:
        """State of the objective: chains, offsets."""
        return self.run_.state

    # ---------------------------------------------------------------- epochs

    @collective
    def partial_fit(
        self,
        X: Rows,
        y: Any = None,
        classes: Any = None,
        tasks: Epochs | None = None,
        **kwargs: Any,
    ) -> Any:
        """Train for `max_epochs`; `interrupted_` says whether Ctrl-C ended it.

        skorch would swallow `KeyboardInterrupt` and leave no trace of it. One that comes before the
        first epoch is raised, because callbacks would find no epoch in the history.
        """
        if not self.initialized_:
            self.initialize()
        check_callbacks(self)
        self.interrupted_ = True  # until the loop has come to its end
        self.n_before_ = len(self.history)
        self.clock_, self.n_due_ = Clock(self.max_time), 0
        # Line searches are assessed after each step.
        searches = searches_steps(self.optimizer_)
        self.guard_ = Guard(seldom=self.log_ratios_ is not None and not searches)
        if self.clock_.limited and self.guard_.seldom:  # each of which takes a part of a second
            self.n_assessments_ = min(self.n_assessments_, max(2, int(self.max_time)))
        self.reported_ = self.n_restarts_
        self.logs_: dict[str, float] = {}  # of the trained weights
        self.averaged_: dict[str, float] = {}  # of their average
        self.least_: dict[str, float] = {}  # losses
        self.note_: Notice | None = None
        self.kept_epoch_ = 0  # after which the weights are those that training ended with
        modes = TorchModes.current()
        self.first_: list[Tensor] = []
        self._find_group(X)
        self.run_.epochs = tasks
        try:
            self.notify("on_train_begin", X=X, y=y)
            self.fit_loop(X, y, **kwargs)
        except KeyboardInterrupt as error:
            modes.restore()
            self.interrupted_ = not ends_training(error)
            if len(self.history) and "epoch" not in self.history[-1]:
                del self.history[-1]  # its first entry was not made yet
            if len(self.history) == self.n_before_:
                raise
            if self.interrupted_ and self.group_.size > 1:  # the others are at other batches
                raise
        finally:
            self.run_.parallel = self.run_.epochs = None
            for one in self._resuming():
                one.release()
        self.group_.meet("the end of training")
        self.notify("on_train_end", X=X, y=y)
        if self.judges_ is not None:
            self._judge(*self.judges_)
        if self.trajectory_ is not None and (not self.streaming or self.trajectory_.is_due):
            self._end_trajectory(self.trajectory_)
        return self

    def _end_trajectory(self, recorder: TrajectoryRecorder) -> None:
        """Follow training to the weights that it ended with, of which the history tells."""
        recorder.finish(self._energy)
        if len(self.history) > self.n_before_:
            for name, value in self._along_training(recorder).items():
                self.history.record(name, value)

    @property
    def _energy(self) -> Any:
        """The energy that is trained."""
        return self.module_.energy

    def _resuming(self) -> list[Resume]:
        return [one for _, one in self.callbacks_ if isinstance(one, Resume)]

    def _find_group(self, X: Rows) -> None:
        """The processes that train together, and whether batches are divided among them."""
        self.group_ = current_group()
        if not isinstance(self.group_, Ranks):
            return
        if self.clock_.limited:  # by which processes would not end at the same batch
            raise ValueError("max_time is for one process: leave it at 'auto' where several train.")
        settings = settings_of(self) | {
            "the entries of the weights": weight_sum(self.module_),
            "the number of Resume callbacks": len(self._resuming()),
        }
        check_same(self.group_, settings | of_rows(X, self.validation, self.held_out_))
        reason = self._why_undivided(X)
        if reason is None:
            trained = [p for group in self.optimizer_.param_groups for p in group["params"]]
            self.run_.parallel = DataParallel(self.group_, self.module_, trained)
        elif not self.group_.rank:
            warn(
                f"Each of {self.group_.size} processes trains on all rows, which takes as long as "
                f"in one: {reason}.",
                SettingWarning,
            )

    def _why_undivided(self, X: Rows) -> str | None:
        """Why batches cannot be divided among processes; None where they can."""
        if searches_steps(self.optimizer_):
            return "a line search judges its steps by all rows"
        if X.known is not None:
            return "each keeps the entries that it has drawn, hidden or missing ones"
        if not Batches(X, self.batch_size, None).divisible(self.group_.size):
            return f"batches of {self.batch_size} out of {len(X)} rows are too small to be divided"
        return self.module_.why_undivided

    def fit_loop(self, X: Rows, y: Any = None, epochs: int | None = None, **kwargs: Any) -> Any:
        done = len(self.history) - self.n_before_  # a callback may have resumed training
        self.module_.draws = may_draw(self.module_)
        self.first_ = self.first_ or [w.clone() for w in weights_of(self.module_)]
        self.most_epochs = min(self.most_epochs, max(self.max_epochs, self._affordable(len(X))))
        try:
            with threads(self.module_.work(min(self.batch_size, len(X)))):
                while (last := self._next_stop(epochs)) > done:
                    super().fit_loop(X, y, last - done, **kwargs)
                    done = last
            ended_early = False
        except NoFurtherGainError:
            ended_early = True
        except KeyboardInterrupt as error:
            if ends_training(error):  # a line search has converged
                self._return_to_best(False, math.ceil(len(X) / self.batch_size))
            raise
        finally:
            self.run_.steps = None
        self._return_to_best(ended_early, math.ceil(len(X) / self.batch_size))
        self.interrupted_ = False
        return self

    def _affordable(self, n_rows: int) -> int:
        """Epochs that the work of a default fit allows.

        As many as planned of convolutions, whose work is not counted: they use a weight many times.
        """
        if any(isinstance(layer, CONVOLUTIONS) for layer in self.module_.modules()):
            return self.max_epochs
        size = min(self.batch_size, n_rows)
        of_step = max(self.module_.work(size), 1.0)
        return int(MOST_WORK / (of_step * math.ceil(n_rows / size)))

    def _next_stop(self, epochs: int | None) -> int:
        """Epochs after which held-out rows say whether there are twice as many, or the last one.

        They say so after half of them, while the rate is large, by what they gained since a fourth.
        Training ends after a fourth if they have gained nothing over the base until then, unless
        that is asked after each epoch (:meth:`Guard.is_exhausted`).
        """
        if epochs is not None:
            return epochs
        done = len(self.history) - self.n_before_
        while self.held_out_ is not None and self.max_epochs < self.most_epochs:
            quarter, half = math.ceil(self.max_epochs / 4), math.ceil(self.max_epochs / 2)
            if done < quarter:
                return quarter
            gains = [row[GAIN] for row in self.history[self.n_before_ :] if GAIN in row]
            best = self.guard_.best
            if self.guard_.seldom and best is not None and best.gains_nothing:
                self.max_epochs = self.most_epochs = done
            elif done < half:
                return half
            elif still_rising(gains, 2) is None:
                self.most_epochs = self.max_epochs
            else:
                longer = min(2 * self.max_epochs, self.most_epochs)
                self.n_assessments_ = self.n_assessments_ * longer // self.max_epochs
                self.max_epochs = longer
                self.n_due_ = self.n_assessments_ * done // longer
        return self.max_epochs

    def _return_to_best(self, ended_early: bool, n_batches: int) -> None:
        """Return to earlier weights where the guard says so, with a note for the warning."""
        best, clearly = self.guard_.returns_to(ended_early), self.guard_.clearly_better()
        self.kept_epoch_ = len(self.history) if best is None else best.epoch
        if best is None:
            return
        copy_weights(best.weights, weights_of(self.module_))
        start = self.guard_.start
        returned = start is not None and best.epoch == start.epoch
        if best.gains_nothing and (ended_early or self.guard_.seldom or returned):
            if not is_worth_a_warning(Gain(best.gain, best.error)):
                return
            n_steps = n_batches * self.max_epochs
            remedy = "More rows or a larger n_iter may find more."
            given = not (ended_early or self.most_epochs)
            if self.guard_.seldom and given and n_steps < ENOUGH_STEPS:
                remedy = f"Set n_iter to {math.ceil(ENOUGH_STEPS / n_batches)} or more."
            self.note_ = Notice(
                f"Held-out rows became no more likely than under {self.reference_} (by "
                f"{best.gain:.2g} nats, standard error {best.error:.2g}), which is as good a model "
                "of these rows.",
                TrainingWarning,
                ((remedy, "n_iter"), ("More rows may find more.",)),
            )
        elif clearly and clearly.gain - self.guard_.shown["gain_over_base"] > WORTH_A_WARNING:
            advice: tuple[str, ...] = (
                "Lower learning_rate or n_iter, or raise weight_decay.",
                "n_iter",
            )
            if self.guard_.seldom:  # an RBM, whose rate is halved where rows lose much
                advice = ("Lower n_components or n_iter, or pass a penalty.", "n_components")
            self.note_ = Notice(
                f"The weights are those after epoch {best.epoch} of {len(self.history)}, under "
                "which held-out rows were clearly more likely: later epochs overfitted.",
                TrainingWarning,
                (advice, ("Lower n_iter.", "n_iter")),
            )

    def on_epoch_begin(
        self, net: Any, dataset_train: Any = None, dataset_valid: Any = None, **kwargs: Any
    ) -> None:
        """End training if held-out rows no longer gain, otherwise begin an epoch."""
        n_batches = math.ceil(len(dataset_train) / self.batch_size)
        n_epochs = len(self.history)
        self.group_.meet(f"epoch {n_epochs + 1}")
        if self.guard_.is_exhausted(n_epochs, self.n_before_, self.max_epochs, n_batches):
            raise NoFurtherGainError
        if n_epochs > self.n_before_ and self.clock_.is_over():
            raise NoFurtherGainError
        super().on_epoch_begin(net, dataset_train, dataset_valid, **kwargs)
        if self.run_.epochs is not None:
            self.run_.epochs.begin()

    def on_epoch_end(self, net: Any, *args: Any, **kwargs: Any) -> None:
        super().on_epoch_end(net, *args, **kwargs)
        if self.run_.epochs is not None and self.run_.epochs.end():
            raise KeyboardInterrupt  # as callbacks of skorch end training

    def run_single_epoch(
        self, iterator: Any, training: bool, prefix: str, step_fn: Any, **fit_params: Any
    ) -> None:
        if iterator is None:
            return
        if not training:
            self._validate(iterator)
            return
        started = time.perf_counter()
        n_before = 0 if self.trajectory_ is None else self.trajectory_.next_due
        try:
            self.average_.resume()
            logs = self._train(iterator)
        finally:
            self.average_.show()
        logs = logs | self._trajectory_log(n_before)
        if self.averaging:
            if self._monitors(len(iterator)) or not self.averaged_:
                self.averaged_ = self._monitor(self._monitoring_batch(iterator))
            logs = logs | self.averaged_
        due = self.log_ratios_ is not None and self._is_due()
        logs = logs | (self._assess() if due else {})
        if self.held_out_ is not None:
            self.guard_.keep_best(logs, len(self.history), weights_of(self.module_))
        if due or not self.guard_.seldom:
            self.guard_.shown = logs
        for name, value in logs.items():
            self._record(name, value)
        self.history.record("lr", self.optimizer_.param_groups[-1]["lr"])
        self.history.record("dur", time.perf_counter() - started)
        if due:
            self.logs_ = {}  # chains that go on from draws of the model may know better
            self._mend()

    def _trajectory_log(self, next_due: int) -> dict[str, float]:
        """What a trajectory says of the weights after an epoch, if it has looked at them since."""
        recorder = self.trajectory_
        if recorder is None or not (recorder.is_due or recorder.next_due > next_due):
            return {}
        recorder.follow(self._energy)
        return self._along_training(recorder)

    def _along_training(self, recorder: TrajectoryRecorder) -> dict[str, float]:
        """log Z by the draws that follow training, and what held-out rows gain over the base."""
        if recorder.trail is None:
            return {}
        found, rows = {"log_z": recorder.log_z}, self.held_out_ or self.validation
        if rows is not None and rows.known is None:
            x = rows.block(0, len(rows))
            weight = None if rows.weight is None else rows.weight.to(x.device).double()
            with torch.no_grad(), sampling(self._energy):
                ratio = -self._energy(x).double() - self._energy.base.log_prob(x).double()
            found["trajectory_gain"] = float(weighted_mean(ratio, weight)) - recorder.log_z
        return found

    def _train(self, iterator: Batches) -> dict[str, float]:
        """One epoch, repeated from the last good weights as long as it diverges."""
        monitored = self._rows_to_monitor(iterator)
        with torch.no_grad():
            if self.state_ is None:
                self.run_.state = self.module_.start(monitored(), self.generator)
            before = self.logs_ or self._monitor(monitored())
            # Where the end alone is assessed, the start, which is the base or nearly so, is not.
            once = self.guard_.seldom and self.n_assessments_ == 1
            if self.held_out_ is not None and self.guard_.best is None and not once:
                first = before if self.log_ratios_ is None else self._assess()
                self.guard_.keep_best(first, self.n_before_, weights_of(self.module_))
        if self.trajectory_ is not None and self.trajectory_.trail is None:
            self.trajectory_.follow(self._energy)
        tries = 0
        while True:
            self._schedule()
            good = [w.clone() for w in weights_of(self.module_)], self.module_.snapshot(self.state_)
            completed = iterator.rows.imputations()
            trajectory = None if self.trajectory_ is None else self.trajectory_.copy()
            try:
                logs = self._run_batches(iterator, monitored, before)
                if logs is not None:
                    self.logs_ = logs
                    return logs
                tries += 1
                # A model that diverges draws entries that no other one can go on from.
                iterator.rows.restore(completed)
                self.trajectory_ = trajectory
                self._roll_back(*good, monitored(), tries)
            except KeyboardInterrupt:
                if self.group_.size == 1:
                    self._keep_sound(*good, monitored(), before)
                raise
            self._check_restarts()

    def _monitors(self, n_batches: int) -> bool:
        """Whether the diagnostics after this epoch are computed, rather than those before kept.

        Always where they judge the weights; otherwise after some batches, as they take as long as
        several.
        """
        done = len(self.history) - self.n_before_
        if not self.guard_.seldom or not self.logs_ or done >= self.max_epochs:
            return True
        # Batches between two monitorings of a net that is assessed by held-out rows. A monitoring
        # takes as long as three batches of mixed columns, or twenty of bits by fused steps.
        monitor_every = 30
        return done * n_batches // monitor_every > (done - 1) * n_batches // monitor_every

    def _is_due(self) -> bool:
        """Whether the model is assessed after this epoch, as after the last one of a fit."""
        times, done = self.n_assessments_, len(self.history) - self.n_before_
        number = times * done // self.max_epochs
        if self.clock_.limited:
            number = max(number, math.floor(times * self.clock_.share_spent()))
        before, self.n_due_ = self.n_due_, number
        return number > before

    @torch.no_grad()
    def _assess(self) -> dict[str, float]:
        """Gain of the model over the base; some of the chains go on from draws of the model."""
        assert self.log_ratios_ is not None
        assert self.held_out_ is not None
        found = self._assessment(self.held_out_, self.log_ratios_)
        if found.draws is not None:
            self.run_.state = self.module_.state_with_draws(
                self.state_, found.draws, self.generator
            )
        self.guard_.gains = self.group_.mean_of(found.gains)
        return self.group_.mean({"gain_over_base": found.gain, "gain_error": found.error})

    @torch.no_grad()
    def _assessment(self, rows: Rows, log_ratios: LogRatioOf) -> Assessment:
        return assess(
            log_ratios,
            self.module_.energy,
            rows.block(0, len(rows)),
            rows.weight,
            self._evaluation_generator(),
            rows.n_copies,
        )

    def _judge(self, rows: Rows, log_ratios: LogRatioOf | None) -> None:
        """Assess the weights that early stopping has kept; return to the first if these are best.

        Where log ratios assess them, the recipe decides (`Recipe.after_training`).
        """
        if log_ratios is not None:
            found = self._assessment(rows, log_ratios)
            gain = {"gain_over_base": found.gain, "gain_error": found.error}
            self.guard_.shown = self.group_.mean(gain)
            return
        weights, last = weights_of(self.module_), self._gain_by_monitor(rows)
        if last is None or not self.first_:
            return
        kept = [w.clone() for w in weights]
        copy_weights(self.first_, weights)
        start = self._gain_by_monitor(rows)
        if start is None or is_kept(Gain(last.gain - start.gain, last.error)):
            copy_weights(kept, weights)

    def _gain_by_monitor(self, rows: Rows) -> Gain | None:
        """Gain of rows over the base by the objective's monitor; None without a base or a step."""
        if self.state_ is None:
            return None
        logs = self._monitor(Batches(rows, len(rows), None).monitoring_batch)
        gain = logs.get("gain_over_base")
        return None if gain is None else Gain(gain, logs["gain_error"])

    def _mend(self) -> None:
        """Go on from the best weights with half the rate if held-out rows have lost much.

        Not after the last epoch: :meth:`_return_to_best` judges the end. The first weights are
        returned to in the first half only: later there is too little training left to learn anew
        what, by steps that become smaller, these weights may still gain by.
        """
        best, done = self.guard_.clearly_better(), len(self.history) - self.n_before_
        if best is None or not self.guard_.seldom or done == self.max_epochs:
            return
        if best.gain - self.guard_.shown["gain_over_base"] > MOST_LOST:
            if not self.guard_.has_gained_nothing or 2 * done <= self.max_epochs:
                copy_weights(best.weights, weights_of(self.module_))
                self.average_.restart()
                if self.trajectory_ is not None:
                    self.trajectory_.rewind(self._energy)
            self._halve_rate()

    def _keep_sound(
        self, weights: list[Tensor], state: Any, monitored: Batch, before: dict[str, float]
    ) -> None:
        """Return to the weights before the epoch where those at an interruption have diverged.

        Ctrl-C may come between the step that went wrong and the check that notices it.
        """
        try:
            with torch.no_grad():
                logs = self._monitor(monitored)
            reason = self.module_.divergence_reason(logs, before, len(monitored.x))
        except SamplingError as error:
            reason = str(error)
        if reason is not None:
            copy_weights(weights, weights_of(self.module_))
            self.run_.state = state

    def _rows_to_monitor(self, iterator: Batches) -> Callable[[], Batch]:
        """The rows on which an epoch that begins is monitored, made now if this is foreseen.

        Missing entries are completed by the weights of that moment, as often as a batch has them.
        """
        monitored = functools.cache(functools.partial(self._monitoring_batch, iterator))
        if len(iterator) >= CHECK_EVERY or self._monitors(len(iterator)):
            monitored()
        return monitored

    def _monitoring_batch(self, iterator: Batches) -> Batch:
        """Fixed rows on which training is monitored: the held-out ones, if there are any."""
        rows = self.held_out_
        if rows is None:
            rows, batch = iterator.rows, iterator.monitoring_batch
        else:
            rows = rows.one_copy()
            batch = Batches(rows, len(rows), None).monitoring_batch
        # Steps by which the missing entries of monitored rows are completed.
        n_completing_steps = 3
        if rows.known is not None:
            # The model's own completions: by older ones, or those of the base, it would be judged
            # as worse than it is.
            generator = self._evaluation_generator()
            for _ in range(n_completing_steps):
                batch = self._impute_batch(batch, rows.known, generator)
        return batch

    def _run_batches(
        self, iterator: Batches, monitored: Callable[[], Batch], before: dict[str, float]
    ) -> dict[str, float] | None:
        """The batches of one epoch; the last diagnostics, or None if training diverged."""
        known, last, number = iterator.rows.known, len(iterator), 1
        if known is not None:
            iterator.complete = functools.partial(self._complete, iterator.rows)
        self._divide()
        update, finish = self._update(last, fusable=known is None)
        hooked, monitors = self._has_batch_callbacks(), self._monitors(last)
        logs = self.logs_
        self.module_.train()
        try:
            with torch.no_grad():
                for number, batch in enumerate(iterator, 1):
                    if hooked:
                        self.notify("on_batch_begin", batch=batch, training=True)
                    is_last = number == last or self.clock_.is_over()
                    check = (is_last and monitors) or number % CHECK_EVERY == 0
                    if check:
                        finish()
                    energy = self._energy_of_monitored(monitored()) if check else None
                    loss = update(batch)
                    if check or hooked:
                        finish()
                    if self.trajectory_ is not None:
                        self._follow_batch(self.trajectory_, finish, ends_epoch=number == last)
                    if hooked:
                        self._record_batch(batch, loss)
                        if self.run_.steps is not None:
                            self.run_.steps.load()  # a callback may have changed the weights
                    if check:
                        logs = self._monitor(monitored(), energy)
                        if self._diverges(logs, before, len(monitored().x), number):
                            return None
                    if is_last:
                        break
                self._unite()
        except SamplingError as error:
            self.guard_.record_divergence(len(self.history), number, str(error))
            return None
        finally:  # Ctrl-C too leaves the weights of its moment
            finish()
        if not hooked:  # skorch's checkpoints ask for the last batch
            self.history.new_batch()
            self._record_loss(batch, loss)
        return logs

    def _follow_batch(
        self, recorder: TrajectoryRecorder, finish: Callable[[], None], *, ends_epoch: bool
    ) -> None:
        """Count a batch for a trajectory, which follows within an epoch where that is due.

        Of averaged weights, which are the model, it follows those between epochs alone.
        """
        recorder.count()
        if recorder.is_due and not ends_epoch and not self.averaging:
            finish()
            recorder.follow(self._energy)

    def _divide(self) -> None:
        """Take this process's part of the chains for an epoch."""
        if self.run_.parallel is not None:
            numbers = self.seed_, len(self.history), self.n_restarts_
            self.run_.state = self.run_.parallel.begin(self.state_, self.generator.device, *numbers)

    def _unite(self) -> None:
        """Chains of all processes at the end of an epoch in which sampling has failed on none."""
        parallel = self.run_.parallel
        if parallel is not None:
            self.group_.jointly(nothing, parallel.failure)
            self.run_.state = parallel.end(self.state_)

    def _complete(self, rows: Rows, x: Tensor, index: Tensor) -> Tensor:
        """Rows x of the given numbers with missing entries drawn anew, which are kept."""
        assert rows.known is not None
        batch = Batch(x, row_index=index)
        batch = self._impute_batch(batch, rows.known, self.generator)
        rows.impute(batch)
        return batch.x

    @torch.no_grad()
    def _impute_batch(self, batch: Batch, known: Tensor, generator: torch.Generator) -> Batch:
        """The batch with its missing entries drawn anew; `known` are those of all rows."""
        index = batch.row_index
        assert self.completion_ is not None
        assert index is not None
        known = known[index.to(known.device)].to(batch.x.device)
        return batch._replace(x=self.completion_(self.module_.energy, batch.x, known, generator))

    def _diverges(
        self, logs: dict[str, float], before: dict[str, float], n_rows: int, number: int
    ) -> bool:
        """Whether the diagnostics after batch `number` of the epoch say that training diverges."""
        reason = self.module_.divergence_reason(self.guard_.smooth(logs), before, n_rows)
        if reason is not None:
            self.guard_.record_divergence(len(self.history), number, reason)
        return reason is not None

    def _energy_of_monitored(self, monitored: Batch) -> Tensor | None:
        """Energies of up to 20 monitored rows, by whose change over a step its size is judged.

        None under a line search, which controls the step size itself, and for less than 10 rows.
        """
        if searches_steps(self.optimizer_) or len(monitored.x) < 10:
            return None
        with sampling(self.module_.energy):
            return self.module_.energies(monitored.x[:20])

    def _monitor(self, monitored: Batch, energy: Tensor | None = None) -> dict[str, float]:
        """Diagnostics of the objective, and the change of `energy` by the last step."""
        parallel = self.run_.parallel
        with sampling(self.module_):
            logs = self.group_.jointly(
                lambda: self.module_.monitor(monitored, self.state_, self._evaluation_generator()),
                None if parallel is None else parallel.failure,
            )
        after = self._energy_of_monitored(monitored)
        if energy is not None and after is not None:
            logs["energy_change"] = (after - energy).std()
        found = self.group_.mean({name: float(value) for name, value in logs.items()})
        if self.guard_.seldom:  # chains near the data know less of log Z than an assessment
            found.pop("gain_over_base", None)
            found.pop("gain_error", None)
        return found

    def _evaluation_generator(self) -> torch.Generator:
        """A generator in a fixed state, so that evaluation does not change training."""
        return torch.Generator(self.generator.device).manual_seed(self.seed_)

    def _validate(self, iterator: Batches) -> None:
        self.module_.eval()
        total, count = 0.0, 0.0
        with torch.no_grad():
            generator = self._evaluation_generator()
            for batch in iterator:
                n = len(batch.x) if batch.weight is None else float(batch.weight.sum())
                total += n * float(self.module_.validation_loss(batch, self.state_, generator))
                count += n
        total, count = self.group_.total(total, count)
        self._record("valid_loss", total / count)

    def _record(self, name: str, value: float) -> None:
        """Record a number of the epoch, and of a loss whether it is the least, as skorch does."""
        name = "train_loss" if name == "loss" else name
        self.history.record(name, value)
        if name in ("train_loss", "valid_loss"):
            if name not in self.least_:  # of a history that was loaded, or of earlier calls
                known = [row[name] for row in self.history[:-1] if row.get(f"{name}_best")]
                self.least_[name] = min(known, default=math.inf)
            self.history.record(f"{name}_best", value < self.least_[name])
            self.least_[name] = min(self.least_[name], value)

    # ---------------------------------------------------------------- steps

    def _update(
        self, n_batches: int, *, fusable: bool = True
    ) -> tuple[Callable[[Batch], Loss], Callable[[], None]]:
        """The function that trains on one of `n_batches`: gradients and a step of the optimizer.

        And one that makes weights and state of the net what they are after the batches so far;
        without fused steps (`fusable`) they always are.
        """
        generator, optimizer, parallel = self.generator, self.optimizer_, self.run_.parallel
        gradients = (
            self.module_.gradients_with_random_layers
            if self.module_.draws
            else self.module_.gradients
        )
        if parallel is not None:
            gradients = parallel.gradients
        if searches_steps(optimizer):
            search = line_search_update(
                self.module_, optimizer, self.run_, generator, self._notify_gradients
            )
            return search, nothing
        plain, run = plain_step(optimizer), self.run_
        hooked = self._has_batch_callbacks()
        gradients_asked_for = self._has_batch_callbacks("on_grad_computed")
        fusable = fusable and not gradients_asked_for and parallel is None
        if plain is not None and fusable and self._trains_everything():
            if run.steps is None:
                run.steps = self.module_.fused_steps(run.state, n_batches, generator)
            if run.steps is not None:
                rate = float(optimizer.param_groups[0]["lr"])
                run.steps.begin(run.state, rate, n_batches)
                return update_by_fused_steps(run.steps, run)
        step = plain or step_with_version(optimizer)
        energies = energies_with_limits(self.module_)

        def update(batch: Batch) -> Loss:
            loss = gradients(batch, run.state, generator)
            run.state = loss.state
            if hooked:
                self._notify_gradients(batch)
            step()
            for energy in energies:
                energy.hold_within_limits()
            return loss

        return update, nothing

    def _trains_everything(self) -> bool:
        """Whether the optimizer trains all parameters of the module."""
        trained = [p for group in self.optimizer_.param_groups for p in group["params"]]
        return len(trained) == sum(p.requires_grad for p in self.module_.parameters())

    def _notify_gradients(self, batch: Batch) -> None:
        named = list(self.get_all_learnable_params())
        self.notify("on_grad_computed", named_parameters=named, batch=batch, training=True)

    def _has_batch_callbacks(self, *names: str) -> bool:
        """Whether there are callbacks for these moments of a batch, or for any."""
        names = names or ("on_batch_begin", "on_batch_end", "on_grad_computed")
        return any(
            getattr(type(callback), name) is not getattr(Callback, name)
            for _, callback in self.callbacks_
            for name in names
        )

    def _record_loss(self, batch: Batch, loss: Loss) -> None:
        parallel = self.run_.parallel
        n_rows = len(batch.x) if parallel is None else parallel.n_rows()
        self.history.record_batch("train_batch_size", n_rows)
        if loss.value is not None:
            self.history.record_batch("train_loss", float(loss.value.detach()))

    def _record_batch(self, batch: Batch, loss: Loss) -> None:
        self._record_loss(batch, loss)
        self.notify("on_batch_end", batch=batch, training=True, loss=loss.value, y_pred=None)

    # ---------------------------------------------------------------- guard, schedule

    def _schedule(self) -> None:
        if self.schedule is None:
            return
        fraction = (len(self.history) - 1 - self.n_before_) / max(self.max_epochs, 1)
        fraction = max(fraction, self.clock_.share_spent())
        for group in self.optimizer_.param_groups:
            initial = group.setdefault("initial_lr", group["lr"])
            group["lr"] = initial * self.lr_scale_ * self.schedule(fraction)

    def _roll_back(self, weights: list[Tensor], state: Any, monitored: Batch, tries: int) -> None:
        """Return to the last good weights with half the step, another seed and no momentum.

        From the second roll-back of an epoch on, return to the best weights, where they are known;
        otherwise from the fourth on to the first ones of this call, as the last ones may have been
        so near to divergence that no rate is small enough.
        """
        best = self.guard_.best
        if best is not None and tries > 1:
            weights = best.weights
        elif tries > 3:
            weights = self.first_
        copy_weights(weights, weights_of(self.module_))
        self.n_restarts_ += 1
        self._halve_rate()
        self.generator.manual_seed((self.seed_ + self.n_restarts_) % 2**63)
        self.run_.state = self.module_.state_after_roll_back(
            state, monitored, self.generator, tries
        )

    def _halve_rate(self) -> None:
        """Halve the learning rate, for the rest of the training, and forget the momentum."""
        self.lr_scale_ /= 2
        self.optimizer_.state.clear()
        for group in self.optimizer_.param_groups:
            group["lr"] /= 2

    def _check_restarts(self) -> None:
        """Raise `DivergenceError` where training was rolled back too often.

        Where held-out rows have assessed weights, training ends with the best of them instead.
        """
        restarts = self.n_restarts_ - self.reported_
        if restarts <= self.max_restarts:
            return
        if self.log_ratios_ is not None and self.guard_.best is not None:
            raise NoFurtherGainError
        rate = 2 * self.optimizer_.param_groups[-1]["lr"]
        remedy = f"Lower learning_rate (it was {rate:.3g} the last time)."
        if rate < TINY_RATE:
            remedy = (
                f"As learning_rate={rate:.3g} did not help either, its size is not the cause: "
                "scale the columns and remove rows far from the others, or pass another base, "
                "sampler or objective."
            )
        raise DivergenceError(
            f"Training diverged {restarts} times, first at {self.guard_.first}; "
            f"max_restarts={self.max_restarts}. {remedy}"
        )

    def report(self) -> None:
        """Warn where training was rolled back, returned to earlier weights or was interrupted."""
        restarts = self.n_restarts_ - self.reported_
        if restarts:  # a divergence is the cause of what held-out rows say in the end
            rate = f"Set learning_rate to about {self.lr * self.lr_scale_:.2g}"
            warn(
                f"Training diverged and was rolled back {restarts} times (first at "
                f"{self.guard_.first}).",
                TrainingWarning,
                (f"{rate}{self.module_.advice(self.state_)}.", "learning_rate"),
            )
        elif self.note_ is not None:
            repeat([self.note_])
        if self.clock_.is_over() and len(self.history) - self.n_before_ < self.max_epochs:
            gain = gain_of_a_pass(self.history[self.n_before_ :])
            still = "" if gain is None else f": a pass still gained {gain:.2g} nats"
            warn(
                f"Training ended in pass {len(self.history) - self.n_before_} of "
                f"{self.max_epochs}, after max_time={self.max_time:g} seconds{still}.",
                TrainingWarning,
                ("Raise max_time of the optimizer.", "optimizer"),
            )
        if self.interrupted_ and self.on_interrupt == "return":
            warn(self._interruption(), TrainingWarning)
        notice = None if self.trajectory_ is None else self.trajectory_.notice(self._energy)
        if notice is not None:
            repeat([notice])

    def _interruption(self) -> str:
        return self.interruption_ or (
            f"Training was interrupted in epoch {len(self.history)}; the model keeps its "
            "weights of that moment and is usable."
        )

    def note_interruption(self, note: str) -> None:
        """Count a Ctrl-C before the engine's own training, which has nothing to go on with."""
        self.interrupted_, self.interruption_ = True, note

    def raise_interrupt(self, note: str = "") -> None:
        """Raise the `KeyboardInterrupt` that ended training, if `on_interrupt` is "raise"."""
        if self.interrupted_ and self.on_interrupt == "raise":
            raise KeyboardInterrupt(note or self._interruption())

    # ---------------------------------------------------------------- persistence

    def copy(self) -> EnergyNet:
        """A net that goes on from here, and shares nothing that training changes with this one.

        Settings and callbacks are those of this net.
        """
        net: Any = object.__new__(type(self))
        vars(net).update(vars(self))
        net.generator = torch.Generator(self.generator.device)
        net.generator.set_state(self.generator.get_state())
        # Together, as the average is that of the module.
        net.module_, net.average_ = copy.deepcopy((self.module_, self.average_))
        net.module = net.module_
        net.initialize_optimizer()
        net.optimizer_.load_state_dict(copy.deepcopy(self.optimizer_.state_dict()))
        if hasattr(self.optimizer_, "coordinates"):  # functions, which are not part of its state
            net.optimizer_.coordinates = self.optimizer_.coordinates
        net.run_ = Run()
        net.run_.state = None if self.state_ is None else self.module_.snapshot(self.state_)
        net.history = type(self.history)(self.history)
        net.trajectory_ = None if self.trajectory_ is None else self.trajectory_.copy()
        found: EnergyNet = net
        return found

    def fits(self, rows: Rows) -> bool:
        """Whether rows have this net's device and precision."""
        like = next(self.module_.parameters())
        return (like.device, like.dtype) == (rows.device, rows.dtype)

    def names_of_trainable(self) -> list[str]:
        """Names of the parameters that the optimizer trains, in its order."""
        names = {id(p): name for name, p in self.module_.named_parameters()}
        return [names[id(p)] for group in self.optimizer_.param_groups for p in group["params"]]

    def training_state(self) -> dict[str, Any]:
        """Everything that training changes and a later call needs, as tensors and plain values."""
        return {
            "weights": self.module_.state_dict(),
            "state": self.module_.pack(self.state_),
            "optimizer": self.optimizer_.state_dict(),
            "generator": self.generator.get_state(),
            "seed": self.seed_,
            "lr_scale": self.lr_scale_,
            "history": self.history.to_list(),
            "n_restarts": self.n_restarts_,
            "trajectory": None if self.trajectory_ is None else self.trajectory_.pack(),
        }

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`training_state` returned, whose tensors are on this net's device."""
        self.module_.load_state_dict(state["weights"])
        self.run_.state = self.module_.unpack(state["state"])
        self.optimizer_.load_state_dict(state["optimizer"])
        generator = state["generator"].cpu()
        if generator.shape == self.generator.get_state().shape:  # else of another kind of device
            self.generator.set_state(generator)
        self.seed_, self.lr_scale_ = state["seed"], state["lr_scale"]
        self.history = type(self.history)(state["history"])
        self.n_restarts_ = state["n_restarts"]
        if self.trajectory_ is not None and state.get("trajectory") is not None:
            self.trajectory_.unpack(state["trajectory"])

    def fit_state(self, rows: Rows) -> dict[str, Any]:
        """The state between two epochs of a fit to rows, from which the fit can continue."""
        stoppers = [c for _, c in self.callbacks_ if isinstance(c, EarlyStopping)]
        return {
            "training": self.training_state(),
            "n_before": self.n_before_,
            "epochs": [self.max_epochs, self.most_epochs, self.n_assessments_, self.n_due_],
            "reported": self.reported_,
            "logs": self.logs_,
            "averaged": self.averaged_,
            "first": self.first_,
            "imputations": rows.imputations(),
            "guard": vars(self.guard_),
            "average": self.average_.state(),
            "early_stopping": [
                {name: value for name, value in vars(stopper).items() if name.endswith("_")}
                for stopper in stoppers
            ],
        }

    def load_fit_state(self, state: dict[str, Any], rows: Rows) -> None:
        """Restore what :meth:`fit_state` returned, and the imputations of the rows."""
        self.load_training_state(state["training"])
        self.n_before_, self.reported_, self.logs_ = (
            state[name] for name in ("n_before", "reported", "logs")
        )
        self.max_epochs, self.most_epochs, self.n_assessments_, self.n_due_ = state["epochs"]
        self.averaged_, self.first_ = state["averaged"], state["first"]
        rows.restore(state["imputations"])
        self.guard_.load(state["guard"])
        self.average_.load(state["average"])
        stoppers = [c for _, c in self.callbacks_ if isinstance(c, EarlyStopping)]
        for stopper, kept in zip(stoppers, state["early_stopping"], strict=True):
            vars(stopper).update(kept)

    def load_state(self, before: EnergyNet) -> None:
        """Continue from another net: copy weights, epochs, generator and whatever else fits.

        Chains are copied if the objective has the same class, and the optimizer's state if the
        optimizer is the same, except for that of a line search, whose curvature would be wrong for
        other rows. Nothing is shared with the other net, so that it does not change with this one.
        """
        state = copy.deepcopy(before.training_state())
        mine = self.training_state()
        if type(before.module_) is not type(self.module_):
            state["state"] = {}
        like = next(self.module_.parameters())
        state["state"] = {
            name: None if value is None else value.to(like)
            for name, value in state["state"].items()
        }
        same = type(self.optimizer_) is type(before.optimizer_)
        if same and not searches_steps(self.optimizer_):
            # By name: another form of the objective may train other parameters, and torch would
            # write momenta of one shape into weights of another without noticing.
            slots = state["optimizer"]["state"]
            kept = {name: slots.get(i) for i, name in enumerate(before.names_of_trainable())}
            mine["optimizer"]["state"] = {
                i: kept[name] for i, name in enumerate(self.names_of_trainable()) if kept.get(name)
            }
        try:
            self.load_training_state(state | {"optimizer": mine["optimizer"]})
        except RuntimeError as error:
            raise ValueError(
                "The previous weights have another shape: with warm_start or partial_fit, "
                "n_components and the like must not change. Clone the estimator to start from "
                "new weights."
            ) from error
        for group in self.optimizer_.param_groups:
            group["lr"] *= self.lr_scale_
