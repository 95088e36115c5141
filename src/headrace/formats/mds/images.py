"""Images, as PIL has them: raw pixels, files in memory, and lists of either.

    pil                     u32 width | u32 height | u32 bytes of mode | mode | pixels, as Image.tobytes() gives them
    jpeg  png               a file of that format
    jpeg_array              u32 n | n x u32 size | n files
    list[pil|jpeg|png]      u32 0 | u32 n | n x u32 size | n images, each as above

Pillow is imported with the first image, so that a dataset can be opened, and its other columns read, without it.
"""

import os
from collections.abc import Callable, Sequence
from io import BytesIO
from itertools import accumulate, pairwise
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Any

from headrace.formats.mds.values import Coding, kept, kind_of

if TYPE_CHECKING:
    from types import ModuleType

    from PIL.Image import Image

__all__ = ["image_file", "image_list", "jpeg_array", "pixels"]

Decode = Callable[[memoryview], Any]
_BITS = {"1": 1, "L": 8, "P": 8, "LA": 16, "PA": 16, "La": 16, "I;16": 16, "I;16L": 16, "I;16B": 16, "I;16N": 16}
_BITS |= {"RGB": 24, "YCbCr": 24, "LAB": 24, "HSV": 24, "I": 32, "F": 32}
_BITS |= {"RGBA": 32, "RGBX": 32, "RGBa": 32, "CMYK": 32}
_HEAD = Struct("<III")
_COUNT = Struct("<I")
# Files of any of these are read, whatever the column's name: JPEG columns of real datasets hold the odd PNG. No others,
# since Pillow reads some formats by running a program. The first few are there without importing every plugin.
_COMMON_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM")
_MORE_FORMATS = ("WEBP", "TIFF", "JPEG2000", "AVIF")


def pixels() -> Coding:
    """`pil`: images of any mode; what is decoded has pixels and mode, and no palette or metadata."""

    def encode(value: Any) -> bytes:
        if not isinstance(value, _pillow().Image):
            return kept(value, decode, "a PIL.Image.Image")
        raw = _raw_pixels(value)
        mode = value.mode.encode()
        return b"".join((_HEAD.pack(*value.size, len(mode)), mode, raw))

    def decode(data: memoryview) -> "Image":
        try:
            width, height, mode_bytes = _HEAD.unpack_from(data)
        except StructError:
            raise ValueError(f"an image begins with 12 bytes, found {len(data)}") from None
        begin = _HEAD.size + mode_bytes
        if begin > len(data):
            raise ValueError(f"it says {mode_bytes} bytes of mode, and ends after {len(data)}")
        mode = bytes(data[_HEAD.size : begin][:16]).decode()
        bits = _BITS.get(mode)
        if bits is None:
            raise ValueError(f"{mode!r} is no image mode; known ones are {', '.join(_BITS)}")
        expected = (width * bits + 7) // 8 * height
        if len(data) - begin != expected:
            raise ValueError(f"{width} x {height} pixels of {mode} have {expected} bytes, found {len(data) - begin}")
        if not expected:  # but Pillow would keep a pointer for each of what may be billions of rows
            raise ValueError(f"an image of {width} x {height} pixels has none; images with at least one are stored")
        image: Image = _pillow().frombytes(mode, (width, height), data[begin:])
        return image

    return Coding(None, encode, decode)


def image_file(image_format: str) -> Coding:
    """`jpeg` or `png`: images; what is decoded knows its size, and reads its pixels when they are asked for.

    A JPEG file that PIL opened and nobody has changed is stored as it is, not compressed once more.
    """

    def encode(value: Any) -> bytes:
        if not isinstance(value, _pillow().Image):
            return kept(value, _opened, "a PIL.Image.Image")
        original = _unchanged_file(value) if image_format == "jpeg" else None
        return _saved(value, image_format) if original is None else original

    return Coding(None, encode, _opened)


def jpeg_array() -> Coding:
    """`jpeg_array`: a list or tuple of JPEG files, as bytes; what is decoded is a list of images."""

    def encode(value: Any) -> bytes:
        if not isinstance(value, list | tuple):
            return kept(value, decode, "a list of JPEG files, as bytes")
        for position, file in enumerate(value):
            if not isinstance(file, bytes):
                hint = "; for images declare list[jpeg]" if isinstance(file, _pillow().Image) else ""
                raise TypeError(f"expected a JPEG file as bytes at position {position}, found {kind_of(file)}{hint}")
            _at(position, _opened, memoryview(file))
        return _joined(value, "I")

    def decode(data: memoryview) -> list[Any]:
        return _each(data, 0, _opened)

    return Coding(None, encode, decode)


def image_list(element: Coding, name: str) -> Coding:
    """`list[pil]`, `list[jpeg]` or `list[png]`: a list of what the element's encoding takes; it may be empty."""

    def encode(value: Any) -> bytes:
        if not isinstance(value, list):
            return kept(value, decode, f"a list of images for {name}")
        for position, image in enumerate(value):
            if isinstance(image, bytes):
                hint = "open it with PIL.Image.open(io.BytesIO(...)), or declare jpeg_array"
                raise TypeError(f"expected a PIL.Image.Image at position {position}, found bytes; {hint}")
        return _joined([_at(position, element.encode, image) for position, image in enumerate(value)], "4xI")

    def decode(data: memoryview) -> list[Any]:
        if len(data) < 4 or data[:4].tobytes() != bytes(4):
            raise ValueError("a list of images begins with four zero bytes")
        return _each(data, 4, element.decode)

    return Coding(None, encode, decode)


def _pillow() -> "ModuleType":
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("images need Pillow: pip install 'headrace[images]'") from error
    return Image


def _opened(data: memoryview) -> "Image":
    """The image in a file's bytes; ValueError where Pillow finds none."""
    pillow = _pillow()
    file = BytesIO(data)  # a copy: pixels are read later
    try:
        return _open(pillow, file)
    except pillow.UnidentifiedImageError:  # whose message is the address of the file object
        raise ValueError("it is no image file that can be read (it is of no format that Pillow knows)") from None
    except Exception as error:  # plugins let through whatever a damaged file makes them trip over
        raise ValueError(f"it is no image file that can be read ({error})") from error


def _open(pillow: Any, file: BytesIO) -> "Image":
    image: Image
    try:
        image = pillow.open(file, formats=_COMMON_FORMATS)
    except pillow.UnidentifiedImageError:
        pillow.init()
        image = pillow.open(file, formats=[name for name in _MORE_FORMATS if name in pillow.OPEN])
    return image


def _saved(image: "Image", image_format: str) -> bytes:
    file = BytesIO()
    try:
        image.save(file, format=image_format.upper())
    except Exception as error:  # what Pillow cannot write, in many classes
        advice = '; pass image.convert("RGB")' if "mode" in str(error) else ""
        raise ValueError(f"Pillow cannot store this image as {image_format} ({error}){advice}") from error
    return file.getvalue()


def _unchanged_file(image: Any) -> bytes | None:
    """The JPEG file that the image was opened from, if its pixels still are the file's."""
    from PIL.JpegImagePlugin import JpegImageFile

    unread = bool(getattr(image, "tile", ()))
    if not isinstance(image, JpegImageFile) or image.tell() or (unread and image.fp is None):
        return None
    try:
        data = _file_bytes(image, unread)
        original = _pillow().open(BytesIO(data), formats=("JPEG",))
        same = original.size == image.size and original.mode == image.mode
        # thumbnail(), paste() and drawing change the image in place, and leave its file name.
        return data if same and (unread or original.tobytes() == image.tobytes()) else None
    except (OSError, TypeError, ValueError):
        return None  # the file is gone, or is another; the image itself is what was given


def _file_bytes(image: Any, unread: bool) -> bytes:
    if not unread:
        with open(os.fspath(image.filename), "rb") as file:
            return file.read()
    at = image.fp.tell()
    try:
        image.fp.seek(0)
        data: bytes = image.fp.read()
    finally:
        image.fp.seek(at)
    return data


def _raw_pixels(image: Any) -> bytes:
    """The image's pixels; ValueError where they would not come back, or cannot be read themselves."""
    if image.mode not in _BITS:
        raise ValueError(f"images of mode {image.mode} are not stored; known ones are {', '.join(_BITS)}")
    if 0 in image.size:
        raise ValueError(
            f"it is an image of {image.width} x {image.height} pixels; images with at least one are stored"
        )
    try:
        raw: bytes = image.tobytes()
    except OSError as error:
        raise ValueError(f"its pixels cannot be read ({error})") from error
    if image.mode in ("P", "PA") and (image.getpalette() or []) != _blank_palette(image.mode):
        raise ValueError('its palette would not be stored; declare png, or pass image.convert("RGB")')
    return raw


def _blank_palette(mode: str) -> list[int]:
    """The palette of an image that has been given none."""
    palette: list[int] | None = _pillow().new(mode, (1, 1)).getpalette()
    return palette or []


def _joined(files: Sequence[bytes], count: str) -> bytes:
    try:
        sizes = Struct(f"<{count}{len(files)}I").pack(len(files), *map(len, files))
    except StructError:
        raise ValueError("it has an image of 4 GiB or more") from None
    return b"".join((sizes, *files))


def _each(data: memoryview, at: int, decode: Decode) -> list[Any]:
    """What each of the counted, sized pieces decodes to."""
    try:
        (number,) = _COUNT.unpack_from(data, at)
        begin = at + 4 + 4 * number
        if begin > len(data):  # before a format of that many sizes is made
            raise ValueError(f"it says {number} images, and ends inside their sizes, after {len(data)} bytes")
        sizes = Struct(f"<{number}I").unpack_from(data, at + 4)
    except StructError:
        raise ValueError(f"it ends before it says how many images it has, after {len(data)} bytes") from None
    if begin + sum(sizes) != len(data):
        raise ValueError(f"its {number} images have {sum(sizes)} bytes, found {len(data) - begin}")
    pieces = pairwise(accumulate(sizes, initial=begin))
    return [_at(position, decode, data[first:last]) for position, (first, last) in enumerate(pieces)]


def _at(position: int, function: Callable[[Any], Any], value: Any) -> Any:
    """function(value), and the position in what it raises."""
    try:
        return function(value)
    except ValueError as error:
        raise ValueError(f"image {position}: {error}") from error
    except TypeError as error:
        raise TypeError(f"image {position}: {error}") from error
