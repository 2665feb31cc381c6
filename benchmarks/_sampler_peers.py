"""The samplers of `benchmarks.samplers`, behind one signature; what counts as an evaluation.

blackjax: one gradient a step for MALA and SGLD, one density for the random walk, the number of
leapfrog steps for HMC and NUTS (its integrators keep the last gradient; checked by a callback in
the density). torchebm: calls of `gradient`, counted as they happen; its leapfrog asks for the
gradient at both ends of every step, so twice. The two energies a step that its HMC asks for besides
are not counted.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks._sampler_targets import Length, Run, Target
from skebm.base import Energy

# One thread: XLA does not look at OMP_NUM_THREADS. Read when JAX starts.
os.environ.setdefault("NPROC", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
).strip()

PIP = {"blackjax": "pip install blackjax==1.7.1", "torchebm": "pip install torchebm==0.8.9"}
CHUNK = 50  # compiled transitions of paths; a run is several calls of one program


def have(name: str) -> bool:
    """Whether a peer is installed; a line on how to get it where it is not."""
    found = importlib.util.find_spec(name) is not None
    if not found:
        print(f"{name} is not installed, the run goes on without it: {PIP[name]}")
    elif name == "blackjax":
        import jax

        jax.config.update("jax_enable_x64", True)
    return found


class Counted(Energy):
    """An energy that counts the rows it is asked for, with a gradient and without."""

    def __init__(self, energy: Energy):
        super().__init__()
        self.energy, self.domain = energy, energy.domain
        self.gradients = self.values = 0

    def forward(self, x: torch.Tensor, cond: Any = None) -> torch.Tensor:
        """The energy."""
        if torch.is_grad_enabled():
            self.gradients += len(x)
        else:
            self.values += len(x)
        return self.energy(x, cond)


def ours(make: Callable[..., Any]) -> Callable[..., Run]:
    """A contestant's `run` for one of skebm's samplers; `make` takes the target and settings."""

    def run(target: Target, x0: np.ndarray, length: Length, seed: int, **settings: Any) -> Run:
        sampler, energy = make(target, **settings), Counted(target.energy)
        generator = torch.Generator().manual_seed(seed)
        state: Any = torch.from_numpy(x0)
        if sampler.adapts:
            state, _ = sampler.run(energy, state, 1, generator, n_warmup=length.warmup)
        energy.gradients = energy.values = 0
        kept, started = length.steps // length.thin, time.perf_counter()
        trace = sampler.trace(energy, state, kept, generator, thin=length.thin)
        spent = time.perf_counter() - started
        cost = energy.gradients or energy.values
        return Run(trace.x.numpy(), cost, spent, float(trace.acceptance.mean()))

    return run


class Program(NamedTuple):
    """A compiled piece of a chain: (key, states, parameters of each chain) -> states, results."""

    init: Callable[[Any], Any] | None
    go: Callable[[Any, Any, Any], Any]


def _program(kernel: Any, init: Any, results: Any, chains: int, n: int, thin: int) -> Program:
    """`n` kept transitions of all chains with `thin` steps each, as one compiled loop."""
    import jax
    import jax.numpy as jnp

    def once(states: Any, key: Any, parameters: Any) -> Any:
        keys = jax.random.split(key, chains)
        states, info = jax.vmap(kernel)(keys, states, parameters)
        return states, jax.vmap(results)(states, info)

    @jax.jit
    def go(key: Any, states: Any, parameters: Any) -> Any:
        def kept(states: Any, key: Any) -> Any:
            states, (x, rate, cost) = jax.lax.scan(
                lambda s, k: once(s, k, parameters), states, jax.random.split(key, thin)
            )
            return states, (x[-1], jnp.mean(rate), jnp.sum(cost))

        return jax.lax.scan(kept, states, jax.random.split(key, n))

    return Program(init and jax.jit(jax.vmap(init)), go)


@functools.lru_cache(maxsize=64)
def _simple(method: str, name: str, chains: int, n: int, thin: int) -> Program:
    """Random walk, MALA or SGLD, in units of the scale; parameters: the step."""
    import blackjax
    import jax

    target = TARGETS[name]

    def density(z: Any) -> Any:
        return target.log_density(z * target.sd)

    if method == "rwm":
        inner = blackjax.mcmc.random_walk.build_additive_step()
        normal = blackjax.mcmc.random_walk.normal

        def kernel(key: Any, state: Any, step: Any) -> Any:
            return inner(key, state, density, normal(step))

        init = functools.partial(blackjax.mcmc.random_walk.init, logdensity_fn=density)
    elif method == "mala":
        inner = blackjax.mala.build_kernel()

        def kernel(key: Any, state: Any, step: Any) -> Any:
            return inner(key, state, density, step)

        init = functools.partial(blackjax.mala.init, logdensity_fn=density)
    else:
        inner = blackjax.sgld.build_kernel()
        grad = jax.grad(density)

        def kernel(key: Any, state: Any, step: Any) -> Any:
            return inner(key, state, lambda z, batch: grad(z), None, step), None

        init = jax.numpy.asarray

    def results(state: Any, info: Any) -> Any:
        z = state if info is None else state.position
        return z * target.sd, 1.0 if info is None else info.acceptance_rate, 1

    return _program(kernel, init, results, chains, n, thin)


TARGETS: dict[str, Target] = {}  # what compiled programs are made for, by name


def _drive(program: Program, key: Any, states: Any, parameters: Any, calls: int) -> Run:
    """Time several calls of a program that has been compiled before."""
    import jax

    first, _ = program.go(key, states, parameters)
    jax.block_until_ready(program.go(key, first, parameters))  # its types may differ: one more
    started, x, rates, cost = time.perf_counter(), [], [], 0
    for k in jax.random.split(key, calls):
        states, (rows, rate, spent) = program.go(k, states, parameters)
        x.append(np.asarray(rows))
        rates.append(float(rate.mean()))
        cost += int(spent.sum())
    seconds = time.perf_counter() - started
    return Run(np.concatenate(x), cost, seconds, float(np.mean(rates)))


def simple(
    method: str, target: Target, x0: np.ndarray, length: Length, seed: int, step: float
) -> Run:
    """Blackjax's random walk, MALA or SGLD with a given step, in units of the reference scale."""
    import jax

    kept = length.steps // length.thin
    program = _simple(method, target.name, len(x0), CHUNK, length.thin)
    states = program.init(x0 / target.sd)
    steps = np.full(len(x0), step)
    return _drive(program, jax.random.key(seed), states, steps, max(kept // CHUNK, 1))


@functools.lru_cache(maxsize=64)
def _paths(method: str, name: str, chains: int, warmup: int) -> tuple[Any, Program]:
    """HMC, of a dense mass too, or NUTS: a compiled warm-up of each chain, and what follows."""
    import blackjax
    import jax

    density = TARGETS[name].log_density
    algorithm = blackjax.nuts if method == "nuts" else blackjax.hmc
    inner = algorithm.build_kernel()

    @jax.jit
    def warm(keys: Any, x: Any, n_leapfrog: Any, target_acceptance: Any) -> Any:
        more = {} if method == "nuts" else {"num_integration_steps": n_leapfrog}
        more["is_mass_matrix_diagonal"] = method != "dense"
        more["target_acceptance_rate"] = target_acceptance

        def one(key: Any, row: Any) -> Any:
            search = blackjax.window_adaptation(
                algorithm, density, adaptation_info_fn=lambda *_: None, **more
            )
            (state, found), _ = search.run(key, row, warmup)
            return state, (found["step_size"], found["inverse_mass_matrix"])

        return jax.vmap(one)(keys, x)

    def kernel(key: Any, state: Any, parameters: Any) -> Any:
        return inner(key, state, density, *parameters)

    def results(state: Any, info: Any) -> Any:
        return state.position, info.acceptance_rate, info.num_integration_steps

    return warm, _program(kernel, None, results, chains, CHUNK, 1)


def paths(
    method: str,
    target: Target,
    x0: np.ndarray,
    length: Length,
    seed: int,
    n_leapfrog: int = 20,
    target_acceptance: float = 0.8,
) -> Run:
    """Blackjax's HMC or NUTS after its window adaptation (step and diagonal mass)."""
    import jax

    warm, program = _paths(method, target.name, len(x0), length.warmup)
    first, then = jax.random.split(jax.random.key(seed))
    keys = jax.random.split(first, len(x0))
    states, parameters = warm(keys, x0, n_leapfrog, target_acceptance)
    if method != "nuts":
        parameters = (*parameters, np.full(len(x0), n_leapfrog))
    return _drive(program, then, states, parameters, max(length.steps // CHUNK, 1))


@functools.lru_cache(maxsize=64)
def _chees(name: str, chains: int, warmup: int, room: int) -> tuple[Any, Program]:
    """ChEES-HMC: chains share a step, a mass and a path length that is drawn anew every step."""
    import blackjax
    import jax
    import optax

    density, rules = TARGETS[name].log_density, {}

    @jax.jit
    def warm(key: Any, x: Any) -> Any:
        search = blackjax.chees_adaptation(
            density,
            chains,
            adaptation_info_fn=lambda *_: None,
            mass_matrix_estimation="diagonal",
        )
        (states, found), _ = search.run(
            key, x, 0.1, optax.adam(0.025), warmup, max_sampling_steps=room
        )
        for rule in ("next_random_arg_fn", "integration_steps_fn"):
            rules[rule] = found[rule]  # functions of a step's number, known after tracing
        return states, (
            found["step_size"],
            found["inverse_mass_matrix"],
            *found["integration_steps_params"],
        )

    def kernel(key: Any, state: Any, parameters: Any) -> Any:
        step, mass, mean_steps = parameters
        inner = blackjax.dynamic_hmc.build_kernel(**rules)
        return inner(key, state, density, step, mass, (mean_steps,))

    def results(state: Any, info: Any) -> Any:
        return state.position, info.acceptance_rate, info.num_integration_steps

    return warm, _program(kernel, None, results, chains, CHUNK, 1)


def chees(target: Target, x0: np.ndarray, length: Length, seed: int) -> Run:
    """Blackjax's dynamic HMC after its ChEES adaptation with a diagonal mass."""
    import jax

    warm, program = _chees(target.name, len(x0), length.warmup, length.steps)
    first, then = jax.random.split(jax.random.key(seed))
    states, (step, mass, mean_steps) = warm(first, x0)
    each = np.ones(len(x0))
    parameters = (each * step, each[:, None] * np.asarray(mass), each * mean_steps)
    return _drive(program, then, states, parameters, max(length.steps // CHUNK, 1))


@functools.lru_cache(maxsize=16)
def torchebm_model(energy: torch.nn.Module, scale: torch.Tensor | None, dtype: torch.dtype) -> Any:
    """An energy as a model of torchebm, in units of `scale`, that counts rows of gradients."""
    from torchebm.core import BaseModel

    class Model(BaseModel):
        asked = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.is_grad_enabled():
                self.asked += len(x)
            return energy(x if scale is None else x * scale)

    return Model(dtype=dtype, device="cpu")


def torchebm(
    method: str,
    target: Target,
    x0: np.ndarray,
    length: Length,
    seed: int,
    step: float,
    n_leapfrog: int = 1,
) -> Run:
    """Torchebm's Langevin dynamics or HMC in units of the reference scale (its mass matrix)."""
    from torchebm.samplers import HamiltonianMonteCarlo, LangevinDynamics

    model = torchebm_model(target.energy, SCALES[target.name], torch.float64)
    kind = {"dtype": torch.float64, "device": "cpu"}
    if method == "hmc":
        sampler = HamiltonianMonteCarlo(model, step, n_leapfrog, **kind)
    else:
        sampler = LangevinDynamics(model, step, **kind)
    x = torch.from_numpy(x0 / target.sd)
    generator = torch.Generator().manual_seed(seed)
    model.asked, started = 0, time.perf_counter()
    z = sampler.sample(
        x, n_steps=length.steps, thin=length.thin, return_trajectory=True, generator=generator
    )
    seconds = time.perf_counter() - started
    z = z.transpose(0, 1).numpy()
    moved = (np.diff(z, axis=0) != 0).any(2).mean()
    with np.errstate(over="ignore"):  # of chains that have run off
        return Run(z * target.sd, model.asked, seconds, float(moved))


SCALES: dict[str, torch.Tensor] = {}  # reference scales by target, hashable by identity


def register(target: Target) -> None:
    """Make a target known to compiled programs."""
    TARGETS[target.name] = target
    SCALES[target.name] = torch.from_numpy(target.sd)
