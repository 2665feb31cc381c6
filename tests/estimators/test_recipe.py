"""What all families share: a record without functions, held-out rows, and the model or its base."""

import dataclasses
import inspect
import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from skebm.distributions import Gaussian
from skebm.estimators.recipe import Family, JointModel, Recipe
from skebm.training.plan import TrainingPlan
from skebm.training.rows import Rows
from skebm.training.selection import Gain
from tests.support.oracle import seeded

PLAN = TrainingPlan(1, 10, 0.1, "sgd", {}, "constant", 0.0, 0, 1, 0.0, False, 0, "float64")


@dataclasses.dataclass(frozen=True)
class Toy(Family):
    """A family whose settings say what was done to a model."""

    is_base: bool = False
    is_final: bool = False
    why: str = ""

    def objective(self, recipe, generator):
        raise AssertionError("no policy needs an objective")

    def fit_base(self, recipe, rows):
        return normal_of(rows)

    def set_to_base(self, recipe, net, rows):
        assert recipe.base is net.base or recipe.guard_seed is not None
        return dataclasses.replace(self, is_base=True)

    def finalise(self, recipe, net, rows):
        return dataclasses.replace(self, is_final=True)

    def why_not_converged(self, recipe, net, rows):
        return self.why


class Cautious(Toy):
    needs_validation_rows = True


def normal_of(rows):
    return Gaussian.fit(rows.block(0, len(rows)), shrinkage=0.0)


def rows_of(n, d=3, seed=0):
    x = torch.as_tensor(np.random.default_rng(seed).normal(size=(n, d)))
    return Rows(x, dtype=torch.float64, device=torch.device("cpu"))


def recipe_of(rows, family, **kind):
    return Recipe(SimpleNamespace(), PLAN, normal_of(rows), family, **kind)


def net_of(recipe, gain, error=1.0, **changed):
    """A trained net, of which held-out rows gain a number of nats."""
    guard = SimpleNamespace(final_gain=None if gain is None else Gain(gain, error))
    usual = {
        "streaming": False,
        "validation": None,
        "held_out_": object(),
        "log_ratios_": object(),
        "judges_": None,
        "history": [{}],
        "n_before_": 0,
        "note_": "",
        "guard_": guard,
        "base": recipe.base,
    }
    return SimpleNamespace(**usual | changed)


def settings_after(net_changes, gain, family=None, **kind):
    """Settings of a model after training, and the warnings that say that it is its base."""
    rows = rows_of(100)
    recipe = recipe_of(rows, family or Toy(), **kind)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = recipe.after_training(net_of(recipe, gain, **net_changes), rows)
    assert found.family.is_final
    assert not recipe.family.is_final  # a recipe is never changed
    said = [w for w in caught if issubclass(w.category, ConvergenceWarning)]
    return found.family.is_base, len(said)


@pytest.mark.parametrize(("gain", "is_base"), [(0.6, False), (0.4, True), (-1.0, True)])
def test_a_model_that_gains_half_an_error_is_kept(gain, is_base):
    assert settings_after({}, gain) == (is_base, int(is_base))


@pytest.mark.parametrize(
    "changed",
    [{"streaming": True}, {"n_before_": 3}, {"log_ratios_": None}],
    ids=lambda changed: next(iter(changed)),
)
def test_training_that_goes_on_or_is_not_judged_keeps_what_it_has(changed):
    assert settings_after(changed, -1.0) == (False, 0)


def test_rows_of_early_stopping_judge_too():
    validated = {"validation": object(), "held_out_": None, "log_ratios_": None}
    assert settings_after(validated | {"judges_": object()}, -1.0) == (True, 1)
    assert settings_after(validated | {"judges_": object()}, 1.0) == (False, 0)
    assert settings_after(validated, None) == (False, 0)


@pytest.mark.parametrize("changed", [{"held_out_": None, "log_ratios_": None}, {"history": []}])
@pytest.mark.parametrize("family", [Toy, Cautious])
def test_without_judges_a_cautious_family_is_its_base(changed, family):
    assert settings_after(changed, None, family()) == (family is Cautious, 0)


@pytest.mark.parametrize(("note", "why"), [("It ended early.", ""), ("", "It was too short.")])
def test_it_is_said_once(note, why):
    assert settings_after({"note_": note}, -1.0, Toy(why=why)) == (True, 0)


def test_a_base_that_has_not_seen_the_guards_is_fitted_to_all_rows():
    rows = rows_of(400)
    train, guards = Toy().rows_apart(recipe_of(rows, Toy(), n_guards=500, guard_seed=7), rows)
    assert (len(train), len(guards)) == (360, 40)
    recipe = recipe_of(train, Toy(), n_guards=500, guard_seed=7)
    assert recipe.gain_of_all_rows(rows) >= 0
    with pytest.warns(ConvergenceWarning, match="base of all rows|fitted to all rows"):
        found = recipe.after_training(net_of(recipe, -1.0), rows)
    assert torch.equal(found.base.mean, normal_of(rows).mean)
    # What the new base gains is weighed against the model, and nothing where there is no seed.
    assert dataclasses.replace(recipe, guard_seed=None).gain_of_all_rows(rows) == 0
    assert recipe.gain_of_all_rows(rows_of(10)) == 0


@pytest.mark.parametrize(("n", "n_guards", "held_out"), [(300, 0, 0), (10, 50, 0), (300, 20, 20)])
@pytest.mark.parametrize("guard_seed", [None, 3])
def test_some_rows_are_held_out(n, n_guards, held_out, guard_seed):
    rows = rows_of(n)
    recipe = recipe_of(rows, Toy(), n_guards=n_guards, guard_seed=guard_seed)
    train, guards = recipe.family.hold_out(recipe, rows, seeded())
    if not held_out:
        assert train is rows
        assert guards is None
        return
    assert (len(train), len(guards)) == (n - held_out, held_out)
    both = torch.cat([train.block(0, n), guards.block(0, n)])
    assert torch.equal(both.sort(0).values, rows.block(0, n).sort(0).values)


@pytest.mark.parametrize("optimizer", ["sgd", "lbfgs", "owlqn"])
def test_equal_rows_are_merged_where_each_step_uses_all(optimizer):
    x = torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    rows = Rows(x, dtype=torch.float64, device=torch.device("cpu"))
    plan = dataclasses.replace(PLAN, optimizer=optimizer)
    recipe = Recipe(SimpleNamespace(), plan, None, Toy())
    assert len(recipe.family.deduplicate(recipe, rows)) == (3 if optimizer == "sgd" else 2)


def test_net_params_take_the_place_of_parameters():
    asked = {"net_params": {"lr": 0.1}, "learning_rate": 0.2, "batch_size": 5}
    found = recipe_of(rows_of(10), Toy()).without_effect(asked)
    assert list(found) == ["learning_rate"]


def test_settings_change_by_making_new_ones():
    recipe = recipe_of(rows_of(10), Toy())
    assert recipe.with_settings(why="so").family == Toy(why="so")
    assert recipe.with_epochs(9).plan.n_iter == 9
    assert (recipe.family, recipe.plan) == (Toy(), PLAN)
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.n_guards = 3
    assert math.isfinite(recipe.family.mean_of_base(recipe, rows_of(10)))


# ------------------------------------------------------------------------------
# Families of skebm
# ------------------------------------------------------------------------------


def families():
    """Those of the package, which all have been imported with the estimators."""
    left, found = [Family, JointModel], set()
    while left:
        new = [cls for cls in left.pop().__subclasses__() if cls.__module__.startswith("skebm.")]
        found.update(new)
        left += new
    return sorted(found, key=lambda cls: cls.__name__)


def test_no_family_derives_from_another():
    assert {base for cls in families() for base in cls.__bases__} == {Family, JointModel}
    assert not [cls for cls in families() if inspect.isabstract(cls)]
    assert not Recipe.__subclasses__()


@pytest.mark.parametrize("family", families(), ids=lambda cls: cls.__name__)
def test_families_are_frozen_settings(family):
    assert family.__dataclass_params__.frozen
    fields = {field.name for field in dataclasses.fields(family)}
    assert not fields & {field.name for field in dataclasses.fields(Recipe)}
