"""The recipes of CONTRIBUTING.md work: followed step by step, and every piece of code run.

A recipe is code for a file and a diff of the registries. They are applied to the sources, and what
they define is tested twice: here, for what only it claims, and by the contract suites in a copy of
the repository, which know of it through the registries alone.
"""

import copy
import doctest
import io
import os
import pickle
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from skebm import samplers
from skebm.base import Batch, Clamp, Sampler
from skebm.distributions import IndependentBernoulli
from skebm.energies import BernoulliRBM, MixedRBM
from skebm.objectives import ContrastiveDivergence
from skebm.partition import AIS, Exact
from skebm.partition.given import rowwise_log_z
from skebm.samplers import Gibbs, Persistent, _adaptation, _moves
from skebm.training.engine import EnergyNet
from skebm.training.rows import Rows
from tests.support.objectives import autograd, flat, gradient, later, same
from tests.support.oracle import DOUBLE, Enumerated, bits, joint_energy, make_rbm, mean_is, seeded
from tests.support.tiers import full

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()

# Largest |z| of a mean over independent draws, of a hundred numbers or so.
SIEVE = 5


# ------------------------------------------------------------------------------
# Reading the page
# ------------------------------------------------------------------------------


class Block(NamedTuple):
    """A block of code: its language, the text that announces it, and itself."""

    language: str
    before: str
    code: str

    @property
    def path(self):
        """The file that a block of Python is for: the last that is named before it."""
        return re.findall(r"`([\w/]+\.py)`:", self.before)[-1]


def blocks(page):
    pieces = re.split(r"^```", page, flags=re.MULTILINE)
    for before, piece in zip(pieces[::2], pieces[1::2], strict=False):
        language, _, code = piece.partition("\n")
        yield Block(language, before, code)


class Tree:
    """Texts of the repository; what is changed is changed here, not on the disk."""

    def __init__(self, **texts):
        self.changed = texts

    def read(self, path):
        if path in self.changed:
            return self.changed[path]
        return (ROOT / path).read_text("utf-8") if (ROOT / path).is_file() else None

    def apply(self, diff):
        """A diff without line numbers: each context is looked for below the one before it."""
        path, place, context, added = None, 0, [], []
        for line in [*diff.splitlines(), " "]:
            if added and not line.startswith("+") or line.startswith("+++ "):
                place = self._replace(path, place, context, added)
                context, added = [], []
            if line.startswith("+++ "):
                path, place = line.removeprefix("+++ "), 0
            else:
                (added if line.startswith("+") else context).append(line)

    def _replace(self, path, place, context, added):
        """Put the added lines below their context, at or after a place; the place after them."""
        if not added:
            return place
        text = f"\n{self.read(path)}"
        old = "".join(f"\n{line[1:]}" for line in context) + "\n"
        kept = [line for line in context if not line.startswith("-")]
        at = text.find(old, place)
        assert at >= 0, f"CONTRIBUTING.md adds below lines that {path} does not have:{old}"
        new = "".join(f"\n{line[1:]}" for line in [*kept, *added]) + "\n"
        self.changed[path] = (text[:at] + new + text[at + len(old) :])[1:]
        return at + len(new) - 1


class Recipe(NamedTuple):
    """The name that a recipe adds, the file it writes or extends, and its entries elsewhere."""

    name: str
    path: str
    code: str
    diff: str

    @property
    def entries(self):
        """The part of the diff for each file."""
        parts = re.split(r"^\+\+\+ (\S+)\n", self.diff, flags=re.MULTILINE)[1:]
        return dict(zip(parts[::2], parts[1::2], strict=True))

    def follow(self, tree, with_registries=True):
        before = tree.read(self.path)
        tree.changed[self.path] = self.code if before is None else f"{before}\n\n{self.code}"
        for path, part in self.entries.items():
            if with_registries or path == self.path:
                tree.apply(f"+++ {path}\n{part}")


def recipes(page):
    code, diff = ([b for b in blocks(page) if b.language == kind] for kind in ("python", "diff"))
    for written, entry in zip(code, diff, strict=True):
        name = re.findall(r"^class (\w+)", written.code, flags=re.MULTILINE)[-1]
        yield Recipe(name, written.path, written.code, entry.code)


RECIPES = {recipe.name: recipe for recipe in recipes(PAGE)}


def test_every_block_belongs_to_a_recipe():
    assert {block.language for block in blocks(PAGE)} == {"python", "diff"}
    assert list(RECIPES) == [
        "RandomWalk",
        "TruncatedExponentialRBM",
        "ConditionalRBM",
        "SphericalScore",
    ]


def test_registries_that_a_recipe_names_are_in_the_table():
    """And the other way round."""
    table = PAGE[PAGE.index("| registry |") : PAGE.index("### Add a sampler")]
    for recipe in RECIPES.values():
        others = {path.rpartition("/")[2] for path in recipe.entries if path != recipe.path}
        assert all(f"{name}`" in table for name in others)
        assert {"__init__.py", "api.rst"} < others
        assert len(others) == 3  # and a suite


def test_helpers_that_the_page_names_exist():
    table = PAGE[PAGE.index("| what | helper |") : PAGE.index("Add to\n`skebm/samplers/")]
    for row in table.splitlines()[2:]:
        for name in re.findall(r"`(\w+)`", row.split("|")[2] if "|" in row else ""):
            assert any(hasattr(at, name) for at in (_moves, _adaptation, Sampler, samplers)), name


def test_entries_follow_their_context():
    tree = Tree(a="x = 1\n\n__all__ = [\n    'a',\n    'z',\n]\nz = 1\n", b="1\n1\n3\n")
    tree.apply("+++ a\n-x = 1\n+x = 2\n+y = 3\n     'a',\n+    'b',\n z = 1\n+z = 2\n")
    assert tree.read("a") == (
        "x = 2\ny = 3\n\n__all__ = [\n    'a',\n    'b',\n    'z',\n]\nz = 1\nz = 2\n"
    )
    tree.apply("+++ b\n 1\n+2\n 3\n+4\n+++ a\n x = 2\n\n+w = 3\n".replace("\n\n", "\n y = 3\n\n"))
    assert tree.read("b") == "1\n2\n1\n3\n4\n"
    assert tree.read("a").startswith("x = 2\ny = 3\n\nw = 3\n__all__")
    with pytest.raises(AssertionError, match=r"lines that b does not have:\s+5"):
        tree.apply("+++ b\n 5\n+6\n")


def test_the_layers_are_those_of_the_imports():
    from tests.project.test_architecture import ROWS

    page = (ROOT / "docs" / "dev" / "architecture.md").read_text()
    listed = re.findall(r"^\| L\d \| `(\w+)(?:/|\.py)` \|", page, flags=re.MULTILINE)
    rows = {name: row for row, names in enumerate(ROWS) for name in names}
    assert set(listed) == set(rows)
    order = [rows[name] for name in listed]
    assert order == sorted(order)


# ------------------------------------------------------------------------------
# The code, run here
# ------------------------------------------------------------------------------


def module_of(name):
    """The file of a recipe as a module that no other test finds."""
    recipe = RECIPES[name]
    module = types.ModuleType(f"contributing_{name}")
    tree = Tree()
    recipe.follow(tree, with_registries=False)
    sys.modules[module.__name__] = module  # where pickle looks for its classes
    exec(compile(tree.read(recipe.path), recipe.path, "exec"), vars(module))
    return module


@pytest.fixture(scope="module")
def modules():
    found = {name: module_of(name) for name in RECIPES}
    yield found
    for module in found.values():
        del sys.modules[module.__name__]


@pytest.mark.parametrize("name", RECIPES)
def test_the_examples_of_docstrings_run(modules, name, monkeypatch):
    """With the new name exported where its users import it."""
    module = modules[name]
    package = RECIPES[name].path.split("/")[1]
    monkeypatch.setattr(f"skebm.{package}.{name}", getattr(module, name), raising=False)
    (example,) = doctest.DocTestFinder(recurse=False).find(
        getattr(module, name), name, globs={"__name__": name}
    )
    assert example.examples
    report = io.StringIO()
    doctest.DocTestRunner().run(example, out=report.write)
    assert report.getvalue() == ""


# ------------------------------------------------------------------------------
# An RBM with other units, against quadrature
# ------------------------------------------------------------------------------

D, H = 2, 3


@pytest.fixture
def energy(modules):
    """As it might come out of training: no bias is zero."""
    generator = seeded(3)
    made = modules["TruncatedExponentialRBM"].TruncatedExponentialRBM(
        D, H, generator=generator, scale=3.0, dtype=DOUBLE
    )
    with torch.no_grad():
        for bias in (made.visible_bias, made.hidden_bias):
            bias.copy_(torch.randn(bias.shape, generator=generator, dtype=DOUBLE))
    return made


def simpson(n=400):
    """Nodes in [0, 1] and the logarithms of their weights."""
    weight = torch.full((n + 1,), 2.0, dtype=DOUBLE)
    weight[1::2], weight[0], weight[-1] = 4.0, 1.0, 1.0
    return torch.linspace(0, 1, n + 1, dtype=DOUBLE), (weight / (3 * n)).log()


def square():
    x, log_width = simpson(120)
    return torch.cartesian_prod(x, x), (log_width[:, None] + log_width).flatten()


def log_likelihood(energy, x):
    """log p(x), by quadrature over x and a sum over h, of E(x, h) spelled out."""
    nodes, log_area = square()
    joint = -joint_energy(energy, nodes, bits(H)) + log_area[:, None]
    return (-joint_energy(energy, x, bits(H))).logsumexp(1) - joint.flatten().logsumexp(0)


@pytest.mark.parametrize("rate", [-300.0, -2.0, -0.011, -0.009, 0.0, 1e-9, 0.02, 5.0, 300.0])
def test_units_have_the_density_they_say(modules, rate):
    made = modules["TruncatedExponentialRBM"].TruncatedExponential
    units = made(torch.tensor([[rate]], dtype=DOUBLE))
    x, log_width = simpson(20_000)
    log_p = rate * x + log_width
    assert float(units.log_normaliser) == pytest.approx(float(log_p.logsumexp(0)), rel=1e-6)
    assert float(units.mean) == pytest.approx(float(log_p.softmax(0) @ x), rel=1e-6)
    draws = made(torch.full((20_000, 1), rate, dtype=DOUBLE)).sample(seeded())
    assert draws.min() >= 0
    assert draws.max() <= 1
    # The distribution function at a draw is uniform, whatever the distribution.
    if abs(rate) < 1e-6:
        u = draws
    else:
        u = (rate * draws).expm1() / torch.tensor(rate, dtype=DOUBLE).expm1()
    assert mean_is(torch.cat([u, u.square(), u**3], 1), torch.tensor([1 / 2, 1 / 3, 1 / 4])) < SIEVE


@pytest.mark.parametrize("beta", [1.0, 0.4])
@pytest.mark.parametrize("tilted", [False, True])
def test_conditionals_are_those_of_the_joint(energy, beta, tilted):
    """p(x given h) and its normaliser, also with a field and with a column that is clamped."""
    h, (x, log_area) = bits(H), square()
    field = torch.tensor([0.7, -1.3], dtype=DOUBLE) if tilted else None
    log_p = -beta * joint_energy(energy, x, h)
    if tilted:
        log_p = log_p + (x @ field)[:, None]
    weight = log_p + log_area[:, None]
    torch.testing.assert_close(
        energy.hidden_energy(h, beta, field), -weight.logsumexp(0), atol=1e-5, rtol=1e-6
    )
    mean = weight.softmax(0).t() @ x
    torch.testing.assert_close(energy.visible(h, beta, field).mean, mean, atol=1e-5, rtol=1e-6)
    value = torch.rand(len(h), D, generator=seeded(1), dtype=DOUBLE)
    clamp = Clamp(torch.tensor([True, False]).expand_as(value), value)
    nodes, log_width = simpson()
    for row, at, found in zip(h, value, energy.hidden_energy(h, beta, field, clamp), strict=True):
        free = torch.stack([at[:1].expand_as(nodes), nodes], 1)
        log_q = -beta * joint_energy(energy, free, row[None])[:, 0] + log_width
        log_q = log_q + (free @ field if tilted else 0)
        torch.testing.assert_close(found, -log_q.logsumexp(0), atol=1e-5, rtol=1e-6)


def test_chains_follow_the_density(energy):
    """Gibbs chains from the base have the moments of p(x) by quadrature."""
    state, _ = Gibbs().run(energy, energy.base.sample(20_000, seeded()), 30, seeded(1))
    x, log_area = square()
    p = (log_likelihood(energy, x) + log_area).exp().detach()
    assert float(p.sum()) == pytest.approx(1, abs=1e-6)

    def moments(x):
        return torch.cat([x, x.square(), x[:, :1] * x[:, 1:]], 1)

    assert mean_is(moments(state.x), p @ moments(x)) < SIEVE


def test_log_z_is_known(energy):
    x, log_area = square()
    log_z = float((-energy(x) + log_area).logsumexp(0).detach())
    assert Exact().estimate(energy).value == pytest.approx(log_z, abs=1e-6)
    found = AIS(n_chains=300, n_betas=100).estimate(energy, generator=seeded())
    assert abs(found.value - log_z) < 5 * found.std_error
    assert found.std_error < 0.1


def contrastive(energy, n_steps=1):
    chains = Persistent(n_steps, n_chains=50, initial=energy.base)
    return ContrastiveDivergence(energy, Gibbs(), chains)


def test_the_gradient_is_that_of_rows_minus_chains(energy):
    objective, x = contrastive(energy), energy.base.sample(6, seeded(2))
    batch = Batch(x)
    grads, loss = gradient(objective, batch, objective.start(batch, seeded(1)), 5)

    def difference(energy):
        level = [(-joint_energy(energy, at, bits(H))).logsumexp(1).mean() for at in (x, rows)]
        return level[1] - level[0]

    rows = loss.state.chain.x
    torch.testing.assert_close(flat(grads), flat(autograd(difference, energy)))


def trained_net(objective, x, **settings):
    net = EnergyNet(
        objective,
        generator=seeded(2),
        batch_size=100,
        optimizer=torch.optim.Adam,
        verbose=0,
        **settings,
    ).initialize()
    net.fit(Rows(x, dtype=DOUBLE, device=torch.device("cpu")))
    return net


@full
def test_it_is_trained_by_persistent_chains(modules, energy):
    """From another model to nearly the log-likelihood of the one that drew the rows."""
    x = Gibbs().run(energy, energy.base.sample(1500, seeded()), 50, seeded(1))[0].x
    start = modules["TruncatedExponentialRBM"].TruncatedExponentialRBM(
        D, H, generator=seeded(9), scale=0.1, dtype=DOUBLE
    )
    net = trained_net(contrastive(start, 5), x[:1000], max_epochs=15, lr=0.1)
    with torch.no_grad():
        best, found = (log_likelihood(e, x[1000:]).mean() for e in (energy, net.module_.energy))
    assert best > 0.05  # the uniform distribution has 0
    assert found > best - 0.05
    assert net.n_restarts_ == 0


def test_it_can_be_stored(modules, energy):
    x = energy.base.sample(5, seeded(2))
    other = type(energy)(D, H, generator=seeded(8), dtype=DOUBLE)
    other.load_state_dict(energy.state_dict())
    for again in (other, pickle.loads(pickle.dumps(energy)), copy.deepcopy(energy)):
        assert torch.equal(again(x), energy(x))
        assert again.domain == energy.domain
    objective = contrastive(energy)
    state = later(objective, x)
    again = objective.unpack(objective.pack(state))
    assert same(state, again)
    first, second = (flat(gradient(objective, Batch(x), one, 5)[0]) for one in (state, again))
    assert torch.equal(first, second)


# ------------------------------------------------------------------------------
# An energy given conditions, against enumeration
# ------------------------------------------------------------------------------


def test_log_z_of_each_condition_is_known(modules):
    base = IndependentBernoulli(torch.tensor([0.3, -0.4, 0.1, 0.8], dtype=DOUBLE))
    rbm = MixedRBM(base, H, generator=seeded(), scale=0.7, dtype=DOUBLE)
    made = modules["ConditionalRBM"].ConditionalRBM(rbm, 2, generator=seeded(1), scale=0.7)
    c = torch.tensor([[0.0, 0.0], [1.0, -1.0], [2.0, 0.5]], dtype=DOUBLE)
    with torch.no_grad():
        every = [torch.cat([row.expand(16, 2), bits(4)], 1) for row in c]
        log_z = torch.stack([(-made(rows)).logsumexp(0) for rows in every])
    assert len(log_z.unique()) == 3
    found = rowwise_log_z(made.given(c), 500, 100, seeded())
    assert ((found.value - log_z).abs() < 5 * found.std_error).all()
    assert (found.std_error < 0.1).all()


# ------------------------------------------------------------------------------
# An objective, against enumeration
# ------------------------------------------------------------------------------


def spherical(energy, x):
    """Minus the probability of each column over the norm, by the enumerated joint, (n,)."""
    d = x.shape[1]
    log_p = (-joint_energy(energy, bits(d), bits(H))).logsumexp(1)
    place = 2 ** torch.arange(d - 1, -1, -1)
    total = 0.0
    for i in range(d):
        other = x.clone()
        other[:, i] = 1 - other[:, i]
        pair = torch.stack([log_p[(row.long() @ place)] for row in (x, other)], 1).softmax(1)
        total = total - pair[:, 0] / pair.norm(dim=1)
    return total


def test_the_spherical_score_is_that_of_conditionals(modules):
    energy, x = make_rbm(4, H), bits(4)
    weight = torch.rand(16, generator=seeded(1), dtype=DOUBLE)
    objective = modules["SphericalScore"].SphericalScore(energy)
    grads, loss = gradient(objective, Batch(x, weight=weight), None)
    torch.testing.assert_close(loss.value, (weight * spherical(energy, x)).mean().detach())
    expected = autograd(lambda e: (weight * spherical(e, x)).mean(), energy)
    torch.testing.assert_close(flat(grads), flat(expected))


def test_the_spherical_score_is_least_at_the_truth(modules):
    """All states, weighed by their probabilities: no gradient there, and one elsewhere."""
    truth, other = make_rbm(4, H), make_rbm(4, H, seed=1)
    p = Enumerated(truth).p.detach()
    batch, found = Batch(bits(4), weight=16 * p), []
    for energy in (truth, other):
        objective = modules["SphericalScore"].SphericalScore(energy)
        grads, loss = gradient(objective, batch, None)
        found.append((float(flat(grads).abs().max()), float(loss.value.detach())))
    assert found[0][0] < 1e-12
    assert found[1][0] > 1e-2
    assert found[0][1] < found[1][1]


@full
def test_the_spherical_score_trains_an_energy(modules):
    truth = Enumerated(make_rbm(4, H))
    x = truth.draw(2000, seeded())
    energy = BernoulliRBM(4, H, generator=seeded(1), scale=0.1, dtype=DOUBLE)
    objective = modules["SphericalScore"].SphericalScore(energy)
    net = trained_net(objective, x, max_epochs=15, lr=0.05)
    p = Enumerated(net.module_.energy).p
    error = float((p - truth.p).detach().abs().sum()) / 2
    assert error < 0.08  # 2,000 draws alone are off by 0.03 in 15 numbers
    assert float((1 / 16 - truth.p).detach().abs().sum()) / 2 > 0.2


def test_the_spherical_score_refuses_other_rows(modules, energy):
    with pytest.raises(ValueError, match="bits and categories"):
        modules["SphericalScore"].SphericalScore(energy)


# ------------------------------------------------------------------------------
# The recipes, followed in a copy of the repository
# ------------------------------------------------------------------------------


def follow(folder, with_registries=True):
    """A copy of what the tests read, after all recipes; without their entries if so."""
    for name in ("skebm", "tests", "docs"):
        skipped = shutil.ignore_patterns("_build", "generated", "gallery", "images")
        shutil.copytree(ROOT / name, folder / name, ignore=skipped)
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    tree = Tree()
    for recipe in RECIPES.values():
        recipe.follow(tree, with_registries)
    for path, text in tree.changed.items():
        (folder / path).write_text(text, "utf-8")


def run(folder, *arguments):
    """Exit status and output of a Python module, run in the copy."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


SUITES = [f"tests/contracts/test_{kind}.py" for kind in ("samplers", "energies", "objectives")]
PYTEST = ("pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
RULES = "has_a_case or lists_unsuitable or every_part or every_public"


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("followed")
    follow(folder)
    return folder


def passes(folder, *arguments):
    status, output = run(folder, *PYTEST, *SUITES, *arguments)
    assert status == 0, output
    return int(re.search(r"(\d+) passed", output)[1])


@full
def test_what_the_recipes_add_keeps_the_contracts(followed):
    assert passes(followed, "-k", " or ".join(RECIPES)) >= 60


@full
def test_what_the_recipes_add_keeps_the_contracts_in_full(followed):
    assert passes(followed, "-m", "full", "-k", " or ".join(RECIPES)) >= 30


@full
def test_what_the_recipes_add_is_in_style_and_in_its_layer(followed):
    files = sorted({recipe.path for recipe in RECIPES.values()})
    for command in (("check",), ("format", "--check")):
        status, output = run(followed, "ruff", *command, *files, *SUITES, "skebm")
        assert status == 0, output
    rules = ("tests/project/test_architecture.py", "tests/project/test_registries.py")
    status, output = run(followed, *PYTEST, *SUITES, *rules, "-k", f"{RULES} or architecture")
    assert status == 0, output


@full
def test_the_suite_rejects_a_sampler_that_leaves_the_bounds(followed, tmp_path):
    """What the example did before it used the helpers."""
    shutil.copytree(followed, tmp_path / "broken")
    path = tmp_path / "broken" / RECIPES["RandomWalk"].path
    before = "x, outside = reject_outside(energy.domain, proposed, state.x)"
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, "x, outside = proposed, None"))
    status, output = run(tmp_path / "broken", *PYTEST, SUITES[0], "-k", "RandomWalk")
    assert status == 1
    assert "test_exact_draws_stay_exact[RandomWalk box" in output


@full
def test_every_entry_that_is_forgotten_is_asked_for(tmp_path):
    follow(tmp_path, with_registries=False)
    status, output = run(
        tmp_path, *PYTEST, *SUITES, "tests/project/test_registries.py", "-k", RULES
    )
    assert status == 1
    for recipe in RECIPES.values():
        for path in recipe.entries:
            if path != recipe.path:
                assert re.search(rf"{recipe.name} of skebm.* {re.escape(path)}", output), path
    assert "RandomWalk of skebm.samplers.metropolis has no entry in UNSUITABLE" in output
