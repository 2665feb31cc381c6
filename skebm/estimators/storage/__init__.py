"""Storage of models: nets as arrays, and files of other people."""

from skebm.estimators.storage.files import load, trusted_types
from skebm.estimators.storage.nets import pack, package_version, unpack

__all__ = ["load", "pack", "package_version", "trusted_types", "unpack"]
