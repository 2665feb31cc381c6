"""Pictures of fitted models, chains and log Z. Importing needs no matplotlib; drawing does."""

from skebm.inspection.chains import ChainDisplay
from skebm.inspection.partition import PartitionDisplay
from skebm.inspection.rbm import RBMDisplay

__all__ = ["ChainDisplay", "PartitionDisplay", "RBMDisplay"]
