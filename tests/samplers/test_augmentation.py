"""Augmentations: every transformation, with its probability."""

import itertools

import pytest
import torch
from sklearn.base import clone

from skebm.samplers import Augmentation, Compose, Flip, Shift
from tests.support.discovery import walk
from tests.support.oracle import DOUBLE, P_FLOOR, chi_square, seeded

MOVES = [Shift(), Shift(3, fill=0.5), Flip(), Flip(1.0), Compose([Shift(2), Flip()])]
every_move = pytest.mark.parametrize("move", MOVES, ids=repr)


def pictures(n, shape=(2, 4, 5)):
    """The same image n times, with all pixels different."""
    pixels = torch.randperm(40, generator=seeded(), dtype=torch.int64).to(DOUBLE)
    return pixels.view(shape).expand(n, *shape).clone()


def shifted(image, down, right, fill):
    """One image, shifted pixel by pixel."""
    out = torch.empty_like(image)
    height, width = image.shape[1:]
    for i, j in itertools.product(range(height), range(width)):
        a, b = i - down, j - right
        if fill is not None and not (0 <= a < height and 0 <= b < width):
            out[:, i, j] = fill
        else:
            out[:, i, j] = image[:, min(max(a, 0), height - 1), min(max(b, 0), width - 1)]
    return out


def how_often(moved, versions):
    """Counts of the versions of an image among transformed ones, each of which must be one."""
    same = (moved[:, None] == torch.stack(versions)).flatten(2).all(2)
    assert (same.sum(1) == 1).all()
    return same.sum(0), same.long().argmax(1)


def test_every_augmentation_has_a_case():
    assert {type(move) for move in MOVES} == set(walk(Augmentation))


# ------------------------------------------------------------------------------
# What moves, and how often
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("fill", [None, 0.0, -1.5])
@pytest.mark.parametrize("m", [0, 1, 2, 3])
def test_shifts_are_uniform_and_independent(m, fill):
    x = pictures(4000)
    offsets = list(itertools.product(range(-m, m + 1), repeat=2))
    versions = [shifted(x[0], *offset, fill) for offset in offsets]
    counts, which = how_often(Shift(m, fill)(x, seeded(1)), versions)
    if m == 0:
        return
    uniform = torch.full((len(offsets),), 1 / len(offsets), dtype=DOUBLE)
    assert chi_square(counts, uniform) > P_FLOOR
    # Neighbours in the batch: pairs of downward moves of one and the next.
    down = torch.tensor([offset[0] + m for offset in offsets])[which]
    pairs = torch.bincount(down[::2] * (2 * m + 1) + down[1::2], minlength=(2 * m + 1) ** 2)
    assert chi_square(pairs, uniform) > P_FLOOR


@pytest.mark.parametrize("fill", [None, 7.0])
def test_a_shift_beyond_the_image_repeats_the_border(fill):
    x = pictures(400)
    moved = Shift(50, fill)(x, seeded(2))
    far = (moved.flatten(2).amax(2) == moved.flatten(2).amin(2)).all(1)
    assert far.sum() > 200  # most have gone, in both directions, to a corner or to what is outside
    corners = {7.0} if fill else set(x[0, 0, [0, 0, -1, -1], [0, -1, 0, -1]].tolist())
    assert set(moved[far][:, 0].flatten().tolist()) == corners


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_flips_come_with_their_probability(p):
    x = pictures(4000)
    mirrored = x[0][:, :, [4, 3, 2, 1, 0]]
    counts, which = how_often(Flip(p)(x, seeded(3)), [x[0], mirrored])
    if p in (0.0, 1.0):
        assert counts.tolist() == [4000 * (1 - p), 4000 * p]
        return
    assert chi_square(counts, torch.tensor([1 - p, p], dtype=DOUBLE)) > P_FLOOR
    pairs = torch.bincount(which[::2] * 2 + which[1::2], minlength=4)
    independent = torch.tensor([(1 - p) ** 2, (1 - p) * p, p * (1 - p), p * p], dtype=DOUBLE)
    assert chi_square(pairs, independent) > P_FLOOR


def test_compose_applies_in_order():
    x = pictures(500)
    first, second = Shift(2, fill=0.0), Flip(1.0)
    found = Compose([first, second])(x, seeded(4))
    assert torch.equal(found, first(x, seeded(4)).flip(3))
    other_way = Compose([second, first])(x, seeded(4))
    assert not torch.equal(found, other_way)
    assert torch.equal(Compose([])(x, seeded(4)), x)


# ------------------------------------------------------------------------------
# What all have in common
# ------------------------------------------------------------------------------


@every_move
def test_the_generator_is_the_only_randomness(move):
    x, before = pictures(20), torch.get_rng_state()
    kept = x.clone()
    assert torch.equal(move(x, seeded(1)), clone(move)(x, seeded(1)))
    if not (isinstance(move, Flip) and move.p == 1):
        assert not torch.equal(move(x, seeded(1)), move(x, seeded(2)))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(x, kept)


@every_move
@pytest.mark.parametrize("shape", [(0, 1, 3, 3), (1, 3, 1, 1), (4, 1, 2, 7)], ids=str)
def test_shapes_and_precision_stay(move, shape):
    x = torch.rand(shape, generator=seeded())
    moved = move(x, seeded(1))
    assert moved.shape == x.shape
    assert moved.dtype == torch.float32


@every_move
def test_rows_that_are_no_images_are_refused(move):
    with pytest.raises(ValueError, match="transforms images"):
        move(torch.zeros(3, 12), seeded())


@pytest.mark.parametrize(
    "move",
    [
        Shift(-1),
        Shift(1.5),
        Shift(fill="edge"),
        Shift(fill=float("nan")),
        Flip(1.2),
        Flip(None),
        Compose(Flip()),
    ],
    ids=repr,
)
def test_invalid_settings_are_refused(move):
    with pytest.raises(ValueError, match="parameter of"):
        move(pictures(2), seeded())
