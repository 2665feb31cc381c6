"""Series of numbers in time, as rows that any density takes."""

from skebm.estimators.sequences.series.windows import Windows

__all__ = ["Windows"]
