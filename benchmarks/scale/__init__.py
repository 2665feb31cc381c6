"""Beyond one process: tables larger than memory, many columns."""
