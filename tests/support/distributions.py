"""What holds of every distribution, of rows of any kind."""

import copy
import io
import pickle

import torch

from skebm.distributions import Distribution
from tests.support.oracle import DOUBLE, seeded


class NoTensors(pickle.Pickler):
    """Refuses to store a tensor."""

    def reducer_override(self, value):
        assert not isinstance(value, torch.Tensor)
        return NotImplemented


def assert_distribution(noise):
    """Draws, pickles, copies and precisions of a distribution in float64."""
    before = torch.get_rng_state()
    x = noise.sample(20, seeded(1))
    assert x.shape == (20, *noise.domain.row_shape)
    assert x.dtype == DOUBLE
    assert noise.domain.contains(x).all()
    assert torch.equal(noise.sample(20, seeded(1)), x)
    assert not torch.equal(noise.sample(20, seeded(2)), x)
    assert noise.sample(0, seeded()).shape == (0, *noise.domain.row_shape)
    assert noise.log_prob(x[:0]).shape == (0,)
    assert torch.equal(torch.get_rng_state(), before)
    value = noise.log_prob(x)
    alone = torch.cat([noise.log_prob(row[None]) for row in x])
    torch.testing.assert_close(value, alone, rtol=1e-10, atol=1e-10)
    assert_copies(noise, x, value)
    assert type(noise).__name__ in repr(noise)


def assert_copies(noise, x, value):
    """Pickles hold arrays and bring back the same, as moves do; copies share no memory."""
    draws, buffer = noise.sample(5, seeded(3)), io.BytesIO()
    if noise.has_tilted:
        noise.tilted(torch.zeros_like(x)).sample(seeded())  # whatever is cached stays out
    NoTensors(buffer).dump(noise)
    back, twin = pickle.loads(buffer.getvalue()), copy.deepcopy(noise)
    for other in (back, twin):
        assert other.domain == noise.domain
        assert torch.equal(other.log_prob(x), value)
        assert torch.equal(other.sample(5, seeded(3)), draws)
    single = back.to("cpu", torch.float32)
    assert single.sample(3, seeded()).dtype == torch.float32
    found = single.log_prob(x.float())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.to(DOUBLE), value, rtol=1e-4, atol=1e-3)
    again = single.to("cpu", DOUBLE)
    assert again.sample(3, seeded()).dtype == DOUBLE
    torch.testing.assert_close(again.log_prob(x), value, rtol=1e-5, atol=1e-4)
    for tensor in tensors_in(twin):
        tensor.zero_()
    assert torch.equal(noise.log_prob(x), value)


def tensors_in(value):
    """All tensors that a value holds in turn."""
    if isinstance(value, torch.Tensor):
        yield value.detach()
    elif isinstance(value, torch.nn.Module):
        yield from (p.detach() for p in value.parameters())
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, Distribution):
        yield from tensors_in(list(vars(value).values()))
