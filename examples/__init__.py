"""Runnable examples: `python -m examples.demo`, `python examples/write_shards.py`."""
