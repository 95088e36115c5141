"""What d9d takes from triton when it is imported. Its kernels are for GPUs; without one, none is ever run."""


class Config:
    """One way to run a kernel: kept by nobody."""

    def __init__(self, *arguments, **options):
        pass


def jit(function):
    """The function itself, which then cannot be launched."""
    return function


constexpr_function = jit


def autotune(*arguments, **options):
    """A decorator that leaves its function alone."""
    return jit
