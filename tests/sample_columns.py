"""Columns of every encoding with any values, for Hypothesis: what is given to a writer, and what is read back."""

import json
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from PIL import Image

INTEGERS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
FLOATS = ("float16", "float32", "float64")
CASES = [*INTEGERS, *FLOATS]


class Column:
    """An encoding, and a strategy for pairs of (value given, value read)."""

    def __init__(self, encoding: str, given: st.SearchStrategy[Any], read: Any = lambda value: value) -> None:
        self.encoding = encoding
        self.values = given.map(lambda value: (value, read(value)))

    def __repr__(self) -> str:
        return self.encoding


class _Size(NamedTuple):
    width: int
    height: int


def scalars(name):
    dtype = np.dtype(name)
    if name in INTEGERS:
        limits = np.iinfo(dtype)
        return st.integers(int(limits.min), int(limits.max)).map(dtype.type)
    return st.floats(width=8 * dtype.itemsize).map(dtype.type)


def elements(name):
    return arrays(name, array_shapes(max_dims=4, max_side=4))


@st.composite
def images(draw, modes=("1", "L", "RGB", "RGBA", "I;16", "F")):
    mode, size = draw(st.sampled_from(modes)), _Size(draw(st.integers(1, 5)), draw(st.integers(1, 5)))
    image = Image.new(mode, size)
    num_bytes = len(image.tobytes())
    made = Image.frombytes(mode, size, draw(st.binary(min_size=num_bytes, max_size=num_bytes)))
    return Image.frombytes(mode, size, made.tobytes())  # of mode 1, without the bits behind a row's end


def stored_as(image_format, image):
    file = BytesIO()
    image.save(file, image_format)
    return file.getvalue()


def opened(data):
    return Image.open(BytesIO(data))


def as_png(image):
    return opened(stored_as("PNG", image))


JPEGS = [stored_as("JPEG", Image.effect_noise(size, 90)) for size in ((1, 1), (5, 3), (16, 9))]
jpegs = st.sampled_from(JPEGS)
png_modes = images(("1", "L", "RGB", "RGBA"))

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
pickled = st.recursive(json_values | st.binary(max_size=5), lambda inner: st.tuples(inner, inner), max_leaves=4)


def plain_float(value):
    """As text has it: a NaN is a NaN, without the bits that make it one of many."""
    return float(repr(value))


#: What lines of JSON or separated values hold.
LINES = [Column("str", st.text()), Column("int", st.integers()), Column("float", st.floats(), plain_float)]

#: Those of which every value is compared with what was stored, to the bit, without another library's help.
PLAIN = [
    Column("bytes", st.binary(max_size=9)),
    Column("str", st.text(max_size=9)),
    Column("int", st.integers(-(2**63), 2**63 - 1)),
    *(Column(name, scalars(name)) for name in CASES),
    Column("str_int", st.integers()),
    Column("str_float", st.floats(), plain_float),
    Column("str_decimal", st.decimals()),
    Column("json", json_values, lambda value: json.loads(json.dumps(value))),
    Column("ndarray", st.sampled_from(CASES).flatmap(elements)),
    *(Column(f"ndarray:{name}", elements(name)) for name in ("uint16", "float32", "int64")),
    Column("ndarray:uint16:3", arrays("uint16", (3,))),
    Column("ndarray:float64:2,1,2", arrays("float64", (2, 1, 2))),
]
IMAGES = [
    Column("pil", images()),
    Column("png", png_modes, as_png),
    Column("jpeg", jpegs, opened),
    Column("jpeg_array", st.lists(jpegs, max_size=3), lambda files: list(map(opened, files))),
    Column("list[pil]", st.lists(images(), max_size=2)),
    Column("list[png]", st.lists(png_modes, max_size=2), lambda made: list(map(as_png, made))),
]
PICKLES = [Column("pkl", pickled)]

SAFE_COLUMNS = st.sampled_from(PLAIN) | st.sampled_from([*PLAIN, *IMAGES])
ANY_COLUMNS = SAFE_COLUMNS | st.sampled_from([*IMAGES, *PICKLES])
