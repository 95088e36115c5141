"""What Streaming's scripts call before they begin. There is nothing to do here, and so it does nothing."""

__all__ = ["clean_stale_shared_memory"]


def clean_stale_shared_memory() -> None:
    """Nothing. No part of Headrace has shared memory, a lock or a file by a name that could be left after a crash."""
