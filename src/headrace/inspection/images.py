"""What stored images are, by the first bytes of each: no image is decoded, and no package is needed."""

from struct import Struct
from struct import error as StructError

__all__ = ["IMAGES", "image_text"]

IMAGES = ("pil", "jpeg", "png", "jpeg_array", "jpegarray", "list[pil]", "list[jpeg]", "list[png]")
_SHOWN = 4
_U32 = Struct("<I")
_PIXELS = Struct("<III")
_PNG_SIZE = Struct(">II")
_GIF_SIZE = Struct("<HH")
_JPEG_FRAME = Struct(">HH")
_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8"
# Markers of frames (SOF0 to SOF15) but for DHT, JPG and DAC, which lie between them.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def image_text(data: bytes, kind: str) -> str:
    """Such as "JPEG 640x480, 34,000 bytes", or "2 images: ..." of lists; "" for bytes that are none.

    data is a stored value of one of IMAGES, and may be damaged.
    """
    try:
        if kind in ("jpeg_array", "jpegarray"):
            return _list_text(data, 0, "jpeg")
        if kind.startswith("list["):
            return _list_text(data, 4, kind[5:-1])
        return _pixels_text(data) if kind == "pil" else _file_text(data)
    except (StructError, IndexError, UnicodeDecodeError):
        return ""


def _list_text(data: bytes, at: int, kind: str) -> str:
    (number,) = _U32.unpack_from(data, at)
    begin = at + 4 + 4 * number
    if begin > len(data):
        return ""
    texts = []
    for position in range(min(number, _SHOWN)):
        (size,) = _U32.unpack_from(data, at + 4 + 4 * position)
        texts.append(image_text(data[begin : begin + size], kind) or f"{size:,} bytes")
        begin += size
    more = "; …" if number > _SHOWN else ""
    count = "1 image" if number == 1 else f"{number} images"
    return f"{count}: {'; '.join(texts)}{more}" if texts else count


def _pixels_text(data: bytes) -> str:
    width, height, mode_bytes = _PIXELS.unpack_from(data)
    mode = data[_PIXELS.size : _PIXELS.size + min(mode_bytes, 16)].decode()
    return f"pixels {width}x{height} {mode}, {len(data):,} bytes" if mode.isprintable() else ""


def _file_text(data: bytes) -> str:
    name, (width, height) = "", (0, 0)
    if data.startswith(_PNG):
        name, (width, height) = "PNG", _PNG_SIZE.unpack_from(data, 16)
    elif data.startswith(_JPEG):
        name, (width, height) = "JPEG", _jpeg_size(data)
    elif data[:4] == b"GIF8":
        name, (width, height) = "GIF", _GIF_SIZE.unpack_from(data, 6)
    return f"{name} {width}x{height}, {len(data):,} bytes" if name else ""


def _jpeg_size(data: bytes) -> tuple[int, int]:
    """Width and height, from the first frame; IndexError where the file ends before it."""
    at = 2
    while True:
        if data[at] != 0xFF:
            raise IndexError
        marker = data[at + 1]
        if marker in _FRAMES:
            height, width = _JPEG_FRAME.unpack_from(data, at + 5)
            return width, height
        if marker == 0xFF:  # a byte of padding
            at += 1
        elif marker == 0x01 or 0xD0 <= marker <= 0xD8:  # markers without a length
            at += 2
        else:
            at += 2 + max(2, int.from_bytes(data[at + 2 : at + 4], "big"))
