"""Answers of small models are right: exact ones to 1e-6, others within their standard errors."""

import numpy as np
import pytest

from benchmarks.queries import calibrated_models, calibration_of
from skebm.base.processes import collect_warnings
from tests.support.tiers import only_full

CHEAP = {"BoltzmannMachineDensity bits", "TractableDensity mixed"}
NAMES = sorted({f"{name} {kind}" for kind, name, _ in calibrated_models(0)})


@pytest.mark.parametrize("name", [name if name in CHEAP else only_full(name) for name in NAMES])
def test_answers_against_sums_and_quadrature(name):
    errors = {}
    for seed in range(2):
        for kind, one, model in calibrated_models(seed):
            if f"{one} {kind}" == name:
                with collect_warnings():
                    for asked, error in calibration_of(kind, model, seed):
                        errors.setdefault(asked, []).append(error)
    assert max(errors.pop("exact")) < 1e-6
    for asked, z in errors.items():  # of few numbers, so that the bounds are wide
        assert np.sqrt(np.mean(np.square(z))) < 1.3 + 3 / np.sqrt(len(z)), asked
