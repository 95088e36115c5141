"""Headrace takes raw data to training batches."""

__version__ = "0.1.0.dev0"
