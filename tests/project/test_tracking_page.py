"""The programs of the page on trackers that need a package of others run where it is installed.

Those that need none run when the documentation is built.
"""

import os
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.support.tiers import full

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "tracking.md").read_text()
BLOCKS = re.findall(r"^```(python|py)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
# What a program of others is known by, and what it needs.
NEEDS = {"SummaryWriter": "tensorboard", "MlflowLogger": "mlflow", "optuna": "optuna"}


def program(word):
    (found,) = (code for language, code in BLOCKS if language == "py" and word in code)
    return found


def run(code, names):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(code, "docs/guide/tracking.md", "exec"), names)


def test_every_program_of_others_is_run():
    others = [code for language, code in BLOCKS if language == "py"]
    assert sorted(map(program, NEEDS)) == sorted(others)


@full
@pytest.mark.parametrize("word", NEEDS)
def test_a_program_runs_where_its_package_is(word, tmp_path, monkeypatch):
    pytest.importorskip(NEEDS[word])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(os.environ, "MLFLOW_DISABLE_TELEMETRY", "true")
    names = {"__name__": "__main__"}
    run(BLOCKS[0][1], names)  # the rows, and the model
    run(program(word), names)
    if word == "optuna":
        states = {str(trial.state).rpartition(".")[2] for trial in names["study"].trials}
        assert states == {"COMPLETE", "PRUNED"}
        assert np.isfinite(names["study"].best_value)
    else:
        assert list(tmp_path.iterdir())
        assert names["model"].n_iter_ == 8
