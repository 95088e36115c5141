"""A training loop in plain PyTorch that stops anywhere and goes on exactly, and what feeds it."""

__all__: list[str] = []
