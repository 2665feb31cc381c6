"""Pictures of fitted models and of chains. Importing this needs no matplotlib; drawing does."""

from skebm.inspection.chains import ChainDisplay
from skebm.inspection.rbm import RBMDisplay

__all__ = ["ChainDisplay", "RBMDisplay"]
