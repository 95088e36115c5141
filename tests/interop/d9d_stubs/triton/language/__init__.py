"""Names in the kernels' annotations; one of d9d's kernels asks for float32 when it is defined."""

constexpr = dtype = tensor = object


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return object()
