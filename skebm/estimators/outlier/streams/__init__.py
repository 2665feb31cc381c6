"""Streams of rows: alarms that hold at every row, and which columns have changed."""

from skebm.estimators.outlier.streams.drift import ColumnDrift
from skebm.estimators.outlier.streams.monitor import StreamMonitor, StreamUpdate

__all__ = ["ColumnDrift", "StreamMonitor", "StreamUpdate"]
