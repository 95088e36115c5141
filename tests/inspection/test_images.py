"""Stored images are told by their first bytes, whatever wrote them, and damage is no error."""

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.formats.mds.encodings import encoding
from headrace.inspection.images import IMAGES, image_text

Image = pytest.importorskip("PIL.Image")


def saved(image_format, size=(640, 480), mode="RGB", **options):
    file = io.BytesIO()
    Image.new(mode, size).save(file, image_format, **options)
    return file.getvalue()


@pytest.mark.parametrize("size", [(1, 1), (640, 480), (3, 5000)])
@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"exif": b"Exif\0\0" + bytes(999), "comment": b"x" * 99}]
)
def test_jpeg_files_of_every_sort_have_their_size(size, mode, options):
    data = saved("JPEG", size, mode, **options)
    assert image_text(data, "jpeg") == f"JPEG {size[0]}x{size[1]}, {len(data):,} bytes"
    assert image_text(data, "png").startswith("JPEG ")  # what it is, and not what the column says


@pytest.mark.parametrize("image_format", ["PNG", "GIF"])
def test_other_files_have_their_format_and_size(image_format):
    data = saved(image_format, (7, 300))
    assert image_text(data, "png") == f"{image_format} 7x300, {len(data):,} bytes"


def test_padding_between_the_parts_of_a_jpeg_file_is_passed_over():
    data = saved("JPEG", (7, 5))
    assert image_text(data[:2] + b"\xff\xff" + data[2:], "jpeg").startswith("JPEG 7x5")


@pytest.mark.parametrize("kind", IMAGES)
def test_every_encoding_of_images_is_described(kind):
    image = Image.new("RGB", (6, 4))
    value = [saved("JPEG", (6, 4))] if kind.startswith("jpeg") and kind != "jpeg" else image
    data = encoding(kind).encode([image] if kind.startswith("list") else value)
    text = image_text(data, kind)
    assert "6x4" in text
    assert text.startswith("1 image: ") == (kind not in ("pil", "jpeg", "png"))


@given(st.sampled_from(IMAGES), st.binary(max_size=40))
def test_bytes_that_are_no_image_are_no_error(kind, data):
    assert image_text(data, kind).isprintable()


@pytest.mark.parametrize("kind", IMAGES)
def test_images_that_were_cut_are_no_error(kind):
    image = Image.new("RGB", (6, 4))
    value = [saved("JPEG", (6, 4))] * 3 if kind.startswith("jpeg") and kind != "jpeg" else image
    data = encoding(kind).encode([image] * 3 if kind.startswith("list") else value)
    for end in range(len(data)):
        assert image_text(data[:end], kind).isprintable()


def test_a_list_that_claims_billions_of_images_costs_nothing():
    assert image_text(struct.pack("<I", 0xFFFFFFFF) + bytes(100), "jpeg_array") == ""
    assert image_text(struct.pack("<II", 0, 0xFFFFFFFF) + bytes(100), "list[png]") == ""
