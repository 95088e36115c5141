"""Datasets that Headrace and mosaicml-streaming both write and read: the same samples on both sides, without either."""

import hashlib
import io
import re
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np
from PIL import Image

INTEGERS = tuple(f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64))
DTYPES = (*INTEGERS, "float16", "float32", "float64")
LEVELS = {"br": range(12), "bz2": range(1, 10), "gz": range(10), "snappy": (), "zstd": range(1, 23)}
COMPRESSIONS = tuple(name for codec, levels in LEVELS.items() for name in (codec, *(f"{codec}:{n}" for n in levels)))
SHA = ("sha1", "sha224", "sha256", "sha384", "sha3_224", "sha3_256", "sha3_384", "sha3_512", "sha512")
HASHES = ("blake2b", "blake2s", "md5", *SHA, "xxh128", "xxh32", "xxh3_128", "xxh3_64", "xxh64")
ENCODED_IMAGES = ("jpeg", "png", "list[jpeg]", "list[png]")  # what is stored depends on the release of Pillow
TEXT = "It was a bright cold day in April, and the clocks were striking thirteen. \u2603 \U0001f40d "
TEXT_COLUMNS = {"id": "int", "text": "str"}


@dataclass
class Case:
    """A writer's name and arguments, and the samples to write."""

    columns: dict[str, str]
    samples: list[dict[str, Any]]
    options: dict[str, Any] = field(default_factory=dict)
    writer: str = "MDSWriter"

    @property
    def hashes(self):
        return self.options.get("hashes", [])

    @property
    def is_readable_there(self):
        """mosaicml-streaming opens no dataset without samples."""
        return bool(self.samples)


def folder(name):
    """A directory's name for a case."""
    return re.sub(r"\W", "_", name)


@cache
def cases():
    """Name -> Case."""
    return {
        **{f"encoding {name}": of_encoding(name, values) for name, values in values_by_encoding().items()},
        **{f"compression {name}": Case(TEXT_COLUMNS, texts(), compressed(name)) for name in COMPRESSIONS},
        **{f"hash {name}": Case(TEXT_COLUMNS, texts(8), {"hashes": [name]}) for name in HASHES},
        "all hashes": Case(TEXT_COLUMNS, texts(), {"hashes": sorted(HASHES), "size_limit": 1500}),
        **shapes_of_shards(),
        **lines(),
    }


def of_encoding(name, values):
    samples = [{"number": number, "value": value} for number, value in enumerate(values)]
    return Case({"value": name, "number": "int"}, samples, {"hashes": ["xxh3_64"]})


def compressed(name):
    return {"compression": name, "hashes": ["sha1", "xxh64"], "size_limit": 1500}


def texts(count=30):
    """Texts of 0 to 275 letters."""
    return [{"id": number, "text": (TEXT * 4)[number : number * 96 % 277 + number]} for number in range(count)]


def shapes_of_shards():
    """MDS with several shards, one, none and an empty one; names whose order is theirs by code point; stored bytes."""
    long = {"id": 99, "text": TEXT * 40}
    mixed = {"\u00e9": "str", "a": "int", "B": "ndarray:uint16:4", "_": "uint8", "b2": "ndarray"}
    array = np.arange(4, dtype=np.uint16)
    several = [{"\u00e9": "x" * n, "a": n, "B": array + n, "_": n, "b2": array[: n + 1]} for n in range(4)]
    stored = {"a": (7).to_bytes(8, "little"), "b": b"snow", "c": bytes([0x04, 2, 8, 9]), "d": b"[1, 2]"}
    return {
        "no samples": Case(TEXT_COLUMNS, []),
        "64 MiB a shard": Case(TEXT_COLUMNS, texts()),
        "2kb a shard": Case(TEXT_COLUMNS, texts(), {"size_limit": "2kb"}),
        "no limit": Case(TEXT_COLUMNS, texts(), {"size_limit": None}),
        "limit of 0": Case(TEXT_COLUMNS, texts(), {"size_limit": 0}),
        "oversize first": Case(TEXT_COLUMNS, [long, *texts()], {"size_limit": 2000}),
        "oversize later": Case(TEXT_COLUMNS, [*texts(9), long, *texts(9)], {"size_limit": 2000}),
        "names in order": Case(mixed, several, {"hashes": ["md5", "xxh32"]}),
        "fixed column": Case({"a": "int"}, [{"a": n * n} for n in range(500)], {"size_limit": 1024}),
        "stored bytes": Case({"a": "int", "b": "str", "c": "ndarray:uint8", "d": "json"}, [stored]),
    }


def lines():
    """The formats of a line a sample."""
    columns = {"text": "str", "id": "int", "score": "float"}
    scores = (0.5, -0.0, 1e300, 1e-7, float("inf"), 3.0)
    samples = [{"id": n - 3, "text": row["text"], "score": scores[n % 6]} for n, row in enumerate(texts())]
    plain, several = [row | {"text": row["text"].replace(",", "")} for row in samples], {"size_limit": 900}
    found = {}
    for kind, options in (("JSON", {}), ("CSV", {}), ("TSV", {}), ("XSV", {"separator": "; "})):
        for how, more in (
            ("one shard", {}),
            ("lines that end with CR LF", {"newline": "\r\n", "hashes": ["sha256"]}),
            ("several shards", {"hashes": ["md5", "xxh128"], **several}),
            ("several gz shards", {"compression": "gz", "hashes": ["sha1"], **several}),
            ("several zstd shards", {"compression": "zstd:7", "hashes": ["xxh64"], **several}),
            ("no samples", {}),
        ):
            rows = [] if how == "no samples" else plain
            found[f"{kind}, {how}"] = Case(columns, rows, {**options, **more}, f"{kind}Writer")
    found["JSON, characters that a line could not hold"] = Case(
        {"text": "str"}, [{"text": 'a\n"b"\r\t\\,'}, {"text": ""}], {}, "JSONWriter"
    )
    return found


def values_by_encoding():
    """Every encoding -> values that it takes."""
    floats = [0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan"), 2.0**-14]
    found = {
        "bytes": [b"", bytes(range(256))],
        "str": ["", "snow \u2603 \U0001f40d", "a\x00b", TEXT],
        "int": [0, -1, 2**63 - 1, -(2**63), True],
        "str_int": [0, -7, 10**50],
        "str_float": [*floats, 1e300],
        "str_decimal": [Decimal(text) for text in ("0", "-0.00", "1E+30", "NaN", "Infinity", "3.14159265358979323846")],
        "json": [None, [], {"b": 1, "a": [1.5, float("nan"), "\u2603"]}, "x", 7, np.arange(3), [True, {"": None}]],
        "pkl": [None, (1, "a", b"c"), {"x": {1}}, 2**70, [1.5, complex(1, 2)]],
        "ndarray": [*(array(dtype, (2, 3)) for dtype in DTYPES), *shapes()],
        "ndarray:": [array("int32", (3,)), array("float64", (1, 1, 4))],
        "ndarray:uint8:300": [array("uint8", (300,))],
        "ndarray:int64:1,2,3,4": [array("int64", (1, 2, 3, 4))],
    }
    for name in DTYPES:
        dtype = np.dtype(name)
        if dtype.kind == "f":
            found[name] = [*floats, dtype.type(3.25)]
        else:
            limits = np.iinfo(dtype)
            found[name] = [0, 1, int(limits.min), int(limits.max), dtype.type(100)]
        found[f"ndarray:{name}"] = [array(name, (5,)), array(name, (2, 3)).T, array(name, (4, 300))[:, ::2]]
        found[f"ndarray:{name}:2,3"] = [array(name, (2, 3)), array(name, (3, 2)).T, array(name, (2, 6))[:, ::2]]
    return found | values_of_images()


def shapes():
    """Arrays whose sizes need 1, 2 and 4 bytes."""
    return [array("uint8", shape) for shape in ((255,), (256,), (65_535,), (65_536,), (1, 2, 3, 4, 5))]


def array(dtype, shape):
    return (np.arange(np.prod(shape)) * 7 % 120).astype(dtype).reshape(shape)


def values_of_images():
    """Small pictures of every mode that they can be stored in."""
    grey, colour, clear = picture("L"), picture("RGB", 1), picture("RGBA", 2)
    files = [encoded("JPEG", grey), encoded("JPEG", colour)]
    return {
        "pil": [grey, colour, clear, grey.convert("1"), grey.convert("F"), grey.convert("I;16")],
        "png": [grey, colour, clear],
        "jpeg": [grey, colour, files[1]],
        "jpeg_array": [files, files[:1]],
        "jpegarray": [files[::-1]],
        "list[pil]": [[grey, clear], [], [colour]],
        "list[jpeg]": [[grey, colour], []],
        "list[png]": [[clear, grey], []],
    }


def picture(mode, start=0):
    bands = {"L": 1, "RGB": 3, "RGBA": 4}[mode]
    values = np.arange(start, start + 12 * 16 * bands) * 3 % 256
    return Image.fromarray(values.astype(np.uint8).reshape((12, 16, bands)[: 2 + (bands > 1)]))


def encoded(form, image):
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


SPLITS = ("train", "val")
SPLIT_OPTIONS = {"hashes": ["sha1"], "size_limit": 1000}


def of_split(split):
    return texts(20) if split == "train" else texts(5)


PARTS = ("00", "01", "10")
MERGED = {
    "mds": ("MDSWriter", {"hashes": ["sha1"], "size_limit": 700}),
    "zstd": ("MDSWriter", {"hashes": ["xxh64"], "size_limit": 700, "compression": "zstd"}),
    "csv": ("CSVWriter", {"size_limit": 500}),
}
WAYS_TO_MERGE = ("the root", "a list")


def of_part(part):
    return [row | {"id": row["id"] + 100 * int(part), "text": row["text"].replace(",", "")} for row in texts(12)]


def plain(value):
    """The value, its type included, as JSON can hold it; equal only where the bits are."""
    match value:
        case bool() | int() | str() | None:
            return [type(value).__name__, value]
        case np.generic():
            return [value.dtype.name, value.tobytes().hex()]
        case float() | Decimal():
            return [type(value).__name__, repr(value)]
        case bytes():
            return ["bytes", value.hex()]
        case np.ndarray():
            return ["ndarray", value.dtype.str, list(value.shape), digest(value.tobytes())]
        case Image.Image():
            return ["image", value.format, value.mode, list(value.size), digest(value.tobytes())]
        case list() | tuple():
            return [type(value).__name__, [plain(one) for one in value]]
        case dict():
            return ["dict", [[key, plain(one)] for key, one in value.items()]]
    return [type(value).__name__, repr(value)]


def digest(data):
    return data.hex() if len(data) < 64 else hashlib.sha256(data).hexdigest()


def seen_in(dataset):
    """All samples of an opened dataset of either library, from the last to the first."""
    return [sorted_plain(dataset[number]) for number in range(len(dataset) - 1, -1, -1)]


def sorted_plain(sample):
    assert type(sample) is dict, "a sample is a dict"
    return {name: plain(sample[name]) for name in sorted(sample)}
