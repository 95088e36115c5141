"""One name that a kernel takes."""

_log2 = None
