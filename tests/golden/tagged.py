"""The recorded MDS datasets, and the tagged values in which their expected.json says what is in them.

What JSON has no name for is a dict of one key: {"$ndarray": {"dtype", "shape", "b64"}}, {"$npscalar": {"dtype",
"hex"}}, {"$image": {"mode", "size", "pixels_b64", "format"?}}, {"$int"}, {"$float"}, {"$decimal"}, {"$bytes"},
{"$bytearray"}, {"$tuple"}, {"$dict"}.
"""

import base64
import json
import struct
from decimal import Decimal
from pathlib import Path

import numpy as np

MDS = Path(__file__).parent / "mds"
JPEG_TOLERANCE = 4  # libjpeg's builds round differently


def expected_mds(name, split=None):
    """What expected.json says of a recorded dataset, with plain values in `samples` and `inputs`.

    `inputs`, what the writer was given, is there for every dataset; `encoded` has the bytes of each column of each
    sample, where they were recorded.
    """
    file = "expected.json" if split is None else f"expected.{split}.json"
    expected = json.loads((MDS / name / file).read_text(encoding="utf-8"))
    expected["samples"] = [value_of(sample) for sample in expected["samples"]]
    given = expected.get("inputs")
    expected["inputs"] = expected["samples"] if given is None else [value_of(sample) for sample in given]
    if "encoded_b64" in expected:
        expected["encoded"] = [
            {column: base64.b64decode(data) for column, data in sample.items()} for sample in expected["encoded_b64"]
        ]
    return expected


def value_of(value):
    """The plain value of a tagged one."""
    match value:
        case {"$int": text}:
            return int(text)
        case {"$float": text}:
            return float(text)
        case {"$decimal": text}:
            return Decimal(text)
        case {"$bytes": text}:
            return base64.b64decode(text)
        case {"$bytearray": text}:
            return bytearray(base64.b64decode(text))
        case {"$tuple": items}:
            return tuple(value_of(item) for item in items)
        case {"$dict": items}:
            return {key: value_of(item) for key, item in items.items()}
        case {"$npscalar": scalar}:
            return np.frombuffer(bytes.fromhex(scalar["hex"]), little(scalar["dtype"]))[0]
        case {"$ndarray": array}:
            data = bytearray(base64.b64decode(array["b64"]))
            return np.frombuffer(data, little(array["dtype"])).reshape(array["shape"])
        case {"$image": image}:
            return pil_image(image)
        case dict():
            return {key: value_of(item) for key, item in value.items()}
        case list():
            return [value_of(item) for item in value]
    return value


def little(dtype):
    return np.dtype(dtype).newbyteorder("<")


def pil_image(image):
    """An image of these pixels. `format` is that of the file it was decoded from, None for one made in memory."""
    from PIL import Image

    made = Image.frombytes(image["mode"], tuple(image["size"]), base64.b64decode(image["pixels_b64"]))
    made.format = image.get("format")
    return made


def identical(found, expected):
    """Whether a value is what was expected, to the type and the last bit; see difference()."""
    return difference(found, expected) is None


def assert_same(found, expected):
    """Fails, with the first place that differs, unless found is what was expected, to the type and the last bit."""
    assert difference(found, expected) is None, difference(found, expected)


def difference(found, expected, where="it"):
    """Where a value first differs from what was expected, in words; None where it does not.

    Types, NaN payloads, -0.0, dtypes, shapes, modes and formats of images count; the order of a dict's keys does not.
    Pixels of JPEG files may be JPEG_TOLERANCE apart.
    """
    if hasattr(expected, "getpixel"):
        return None if same_image(found, expected) else f"{where} is {found}, not {expected}, or has other pixels"
    if type(found) is not type(expected):
        return f"{where} is a {type(found).__name__}, not a {type(expected).__name__}"
    if isinstance(expected, dict):
        if found.keys() != expected.keys():
            return f"{where} has the keys {list(found)}, not {list(expected)}"
        pairs = ((found[key], expected[key], f"{where}[{key!r}]") for key in expected)
    elif isinstance(expected, list | tuple):
        if len(found) != len(expected):
            return f"{where} has {len(found)} items, not {len(expected)}"
        pairs = zip(found, expected, (f"{where}[{number}]" for number in range(len(found))), strict=True)
    else:
        return None if exact(found) == exact(expected) else f"{where} is {found!r}, not {expected!r}"
    return next(filter(None, (difference(*pair) for pair in pairs)), None)


def exact(value):
    """What tells values of one type apart to the last bit."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, float):
        return struct.pack("<d", value)
    return str(value) if isinstance(value, Decimal) else value


def same_image(found, expected):
    described = [[getattr(image, name, None) for name in ("mode", "size", "format")] for image in (found, expected)]
    if described[0] != described[1]:
        return False
    if expected.format != "JPEG":
        return found.tobytes() == expected.tobytes()
    pixels = [np.frombuffer(image.tobytes(), np.uint8).astype(int) for image in (found, expected)]
    return len(pixels[0]) == len(pixels[1]) and abs(pixels[0] - pixels[1]).max() <= JPEG_TOLERANCE
