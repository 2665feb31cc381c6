"""Types of the columns of a frame as plain values, which a model can store, and back."""

from __future__ import annotations

from typing import Any


def plain_dtype(dtype: Any, kind: str) -> list[Any]:
    """A type of a column of a "pandas" or "polars" frame or of an "array", as plain values."""
    if kind == "polars":
        name = dtype.base_type().__name__
        if name == "Enum":
            return [name, list(dtype.categories)]
        return [name, dtype.time_unit, dtype.time_zone] if name == "Datetime" else [name]
    categories = getattr(dtype, "categories", None)
    if kind == "array" or categories is None:
        return [str(dtype) if kind == "array" or _is_readable(str(dtype)) else "object"]
    own = str(categories.dtype)
    values = [str(v) for v in categories] if _is_of_time(own) else list(categories)
    return ["category", values, own, bool(dtype.ordered)]


def dtype_of(plain: list[Any], kind: str) -> Any:
    """Undo :func:`plain_dtype`, for a frame."""
    name, *rest = plain
    if kind == "polars":
        import polars as pl

        made = getattr(pl, name, None)
        if not (isinstance(made, type) and issubclass(made, pl.DataType)):
            raise TypeError(f"polars has no type {name!r} of columns.")
        return made(*rest) if rest else made
    import pandas as pd

    if name != "category":
        return pd.api.types.pandas_dtype(name)
    values, own, ordered = rest
    return pd.CategoricalDtype(pd.Index(values, dtype=own), ordered=ordered)


def _is_readable(name: str) -> bool:
    """Whether pandas makes a type of its name: not of decimals and dictionaries of Arrow."""
    import pandas as pd

    try:
        pd.api.types.pandas_dtype(name)
    except (TypeError, NotImplementedError):
        return False
    return True


def _is_of_time(name: str) -> bool:
    return name.startswith(("datetime", "timedelta", "period"))
