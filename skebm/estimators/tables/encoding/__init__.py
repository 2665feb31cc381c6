"""Tables of any columns as numbers: what a column is, what becomes of it, and why."""

from skebm.estimators.tables.encoding.dates import days_for_dates
from skebm.estimators.tables.encoding.encoder import TableEncoder

__all__ = ["TableEncoder", "days_for_dates"]
