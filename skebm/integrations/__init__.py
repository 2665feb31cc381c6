"""Estimators of skebm in the form of other packages, each in a module that needs that package."""

__all__: list[str] = []
