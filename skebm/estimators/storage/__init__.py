"""Storage of models: nets as arrays, and files of other people."""

from skebm.estimators.storage.files import load, trusted_types
from skebm.estimators.storage.nets import installed_version, pack, unpack

__all__ = ["installed_version", "load", "pack", "trusted_types", "unpack"]
