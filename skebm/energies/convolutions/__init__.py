"""Configurations of networks that take images, for ``network=`` of the estimators."""
