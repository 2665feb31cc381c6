"""Does an installed skebm work? Run in an environment that has nothing but it.

    python -I tools/smoke.py

Nothing of the repository is imported. A fit, log Z, samples, storage and the default detector of
each kind of column have to work, and the files that a package ships have to be there.
"""

import importlib.metadata
import pickle
import sys
from pathlib import Path

import numpy as np
import sklearn
import torch

import skebm

X = (np.random.default_rng(0).random((200, 6)) < [0.2, 0.3, 0.4, 0.5, 0.6, 0.7]).astype(float)


def check_package() -> None:
    """Installed, of the version that its metadata state, with its types."""
    folder = Path(skebm.__file__).parent
    assert folder.parent.name == "site-packages", f"{folder} is not an installed package"
    assert (folder / "py.typed").is_file()
    metadata = importlib.metadata.metadata("skebm")
    assert skebm.__version__ == metadata["Version"]
    assert "skorch" not in sys.modules, "skorch is imported by the first fit, not by skebm"


def check_rbm() -> None:
    """Fit, exact log Z, samples, and storage bit for bit."""
    rbm = skebm.RBMEstimator(n_components=3, n_iter=5, random_state=0).fit(X)
    states = (np.arange(64)[:, None] >> np.arange(6)) % 2
    assert abs(np.exp(rbm.score_samples(states.astype(float))).sum() - 1) < 1e-4
    assert rbm.sample(10, random_state=0).shape == (10, 6)
    again = pickle.loads(pickle.dumps(rbm))
    assert (again.score_samples(X) == rbm.score_samples(X)).all()


def check_neural() -> None:
    """A network, whose objective differentiates twice."""
    Z = np.random.default_rng(0).normal(size=(200, 2))
    model = skebm.ScoreMatchingDensity(n_iter=30, random_state=0).fit(Z)
    assert np.isfinite(model.score_samples(Z)).all()


def check_detector() -> None:
    """The default detector finds what lies far away."""
    Z = np.random.default_rng(0).normal(size=(200, 3))
    detector = skebm.EnergyOutlierDetector(random_state=0).fit(Z)
    assert detector.predict(Z[:1] + 50).item() == -1


if __name__ == "__main__":
    check_package()
    for check in (check_rbm, check_neural, check_detector):
        check()
    python = sys.version.split()[0]
    print(
        f"skebm {skebm.__version__} works: Python {python}, numpy {np.__version__}, "
        f"scikit-learn {sklearn.__version__}, torch {torch.__version__}"
    )
