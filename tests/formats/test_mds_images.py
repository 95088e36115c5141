"""Images in MDS columns: the layout of their containers, files stored as they are, and what damage can do."""

import io
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw, features

from golden.tagged import assert_same, expected_mds, same_image
from headrace.formats.mds.encodings import encoding

MODES = ["1", "L", "P", "LA", "PA", "La", "I;16", "I;16L", "I;16B", "I;16N", "RGB", "YCbCr", "LAB", "HSV", "I", "F"]
MODES += ["RGBA", "RGBX", "RGBa", "CMYK"]
LISTS = {"list[pil]": "pil", "list[jpeg]": "jpeg", "list[png]": "png"}
ARRAYS = ["jpeg_array", "jpegarray"]


def decoded(name, data):
    return encoding(name).decode(memoryview(data))


def returned(name, value):
    return decoded(name, encoding(name).encode(value))


def photo(width=16, height=8, mode="RGB", seed=1):
    """An image with something to see, so that JPEG changes it."""
    pixels = [(37 * seed * (number + 1)) % 256 for number in range(width * height * 4)]
    return Image.frombytes("RGBA", (width, height), bytes(pixels)).convert(mode)


def file_of(image, image_format="JPEG", **options):
    file = io.BytesIO()
    image.save(file, image_format, **options)
    return file.getvalue()


JPEG = file_of(photo())
PNG = file_of(photo(), "PNG")


# Raw pixels


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [(1, 1), (9, 3), (3, 9), (8, 2)])
def test_an_image_of_any_mode_comes_back_with_its_pixels(mode, size):
    blank = Image.new(mode, size)
    raw = bytes(number % 251 for number in range(1, len(blank.tobytes()) + 1))
    image = Image.frombytes(mode, size, raw)
    data = encoding("pil").encode(image)
    assert data[:12] == struct.pack("<3I", *size, len(mode))
    assert data[12:] == mode.encode() + image.tobytes()
    assert_same(decoded("pil", data), image)
    assert encoding("pil").encode(data) == data


def test_pixels_are_in_memory_of_their_own():
    image = photo()
    buffer = bytearray(encoding("pil").encode(image))
    found = encoding("pil").decode(memoryview(buffer).toreadonly())
    buffer[:] = bytes(len(buffer))
    assert_same(found, image)
    found.putpixel((0, 0), (1, 2, 3))
    assert found.getpixel((0, 0)) == (1, 2, 3)


@pytest.mark.parametrize("mode", ["P", "PA"])
def test_a_palette_would_be_lost_as_pixels_and_is_kept_as_png(mode):
    image = photo().quantize(8)
    if mode == "PA":
        image = image.convert("PA")
    with pytest.raises(
        ValueError, match=r'its palette would not be stored; declare png, or pass image.convert\("RGB"\)'
    ):
        encoding("pil").encode(image)
    with pytest.raises(ValueError, match="image 1: its palette would not be stored"):
        encoding("list[pil]").encode([photo(), image])
    if mode == "P":
        assert returned("png", image).convert("RGB").tobytes() == image.convert("RGB").tobytes()


def test_an_image_without_pixels_is_refused():
    for size in ((0, 5), (5, 0), (0, 0)):
        with pytest.raises(ValueError, match=f"an image of {size[0]} x {size[1]} pixels; images with at least one"):
            encoding("pil").encode(Image.new("L", size))


def raw_image(width, height, mode=b"L", pixels=b"", mode_bytes=None):
    return struct.pack("<3I", width, height, len(mode) if mode_bytes is None else mode_bytes) + mode + pixels


HOSTILE = {
    "nothing": (b"", "begins with 12 bytes, found 0"),
    "a short head": (bytes(11), "begins with 12 bytes, found 11"),
    "no mode": (raw_image(1, 1, b""), "'' is no image mode; known ones are 1, L, P"),
    "an unknown mode": (raw_image(1, 1, b"XYZ", b"abc"), "'XYZ' is no image mode"),
    "a mode that is no text": (raw_image(1, 1, b"\xff"), "utf-8"),
    "a mode past the end": (
        raw_image(1, 1, b"L", b"a", mode_bytes=2**32 - 1),
        "says 4294967295 bytes of mode, and ends after 14",
    ),
    "a pixel too few": (raw_image(2, 2, b"L", b"abc"), "2 x 2 pixels of L have 4 bytes, found 3"),
    "a pixel too many": (raw_image(2, 2, b"L", b"abcde"), "2 x 2 pixels of L have 4 bytes, found 5"),
    "rows of bits": (raw_image(9, 2, b"1", b"abc"), "9 x 2 pixels of 1 have 4 bytes, found 3"),
    "no width": (raw_image(0, 2**31 - 1), "has none; images with at least one are stored"),
    "no height": (raw_image(2**32 - 1, 0), "has none; images with at least one are stored"),
    "more than memory": (
        raw_image(2**32 - 1, 2**32 - 1, b"RGBA", b"abcd"),
        "have 737869762[0-9]+ bytes",
    ),
    "0 modulo 2**64": (raw_image(2**31, 2**31, b"RGBA"), "have 18446744073709551616 bytes, found 0"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_sizes_that_cannot_be_are_value_errors_before_anything_is_made(case):
    data, message = HOSTILE[case]
    with pytest.raises(ValueError, match=message):
        decoded("pil", data)


# Files


@pytest.mark.parametrize("name", ["jpeg", "png"])
def test_what_is_decoded_is_read_from_a_copy_when_its_pixels_are_asked_for(name):
    stored = encoding(name).encode(photo())
    buffer = bytearray(stored)
    found = encoding(name).decode(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert (found.format, found.size, found.mode) == (name.upper(), (16, 8), "RGB")
    assert found.tobytes() == Image.open(io.BytesIO(stored)).tobytes()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGB", "RGBA", "I;16", "P"])
def test_png_gives_every_pixel_back(mode):
    image = (
        photo().quantize(8) if mode == "P" else photo(mode="I").convert(mode) if mode == "I;16" else photo(mode=mode)
    )
    found = returned("png", image)
    assert (found.mode, found.size, found.tobytes()) == (mode, image.size, image.tobytes())


@pytest.mark.parametrize(("name", "mode"), [("jpeg", "RGBA"), ("jpeg", "P"), ("png", "F"), ("png", "CMYK")])
def test_a_mode_that_a_file_cannot_have_is_refused_with_what_to_do(name, mode):
    image = photo().quantize(8) if mode == "P" else photo(mode="L" if mode == "F" else "RGB").convert(mode)
    with pytest.raises(
        ValueError, match=rf'cannot store this image as {name} \(.*{mode}.*; pass image.convert\("RGB"\)'
    ):
        encoding(name).encode(image)


@pytest.mark.parametrize("image_format", ["PNG", "GIF", "BMP", "PPM", "TIFF", "WEBP", "JPEG2000", "AVIF"])
@pytest.mark.parametrize("name", ["jpeg", "png"])
def test_bytes_of_another_format_are_stored_and_read_since_real_datasets_have_them(name, image_format):
    if image_format in ("WEBP", "AVIF") and not features.check(image_format.lower()):
        pytest.skip(f"this Pillow has no {image_format}")
    data = file_of(photo(), image_format)
    assert encoding(name).encode(data) == data
    assert decoded(name, data).size == (16, 8)


@pytest.mark.parametrize("image_format", ["EPS", "PDF"])
def test_formats_that_run_a_program_are_no_images_here(image_format):
    with pytest.raises(ValueError, match="no image file that can be read"):
        decoded("jpeg", file_of(photo(), image_format))


@pytest.mark.parametrize("name", ["jpeg", "png"])
@pytest.mark.parametrize("value", ["picture.jpg", io.BytesIO(JPEG), bytearray(JPEG), None, [photo()]], ids=type)
def test_what_is_no_image_is_refused(name, value):
    with pytest.raises(TypeError, match=r"expected a PIL.Image.Image, found"):
        encoding(name).encode(value)


# JPEG files as they are


@pytest.fixture
def jpeg_file(tmp_path):
    path = tmp_path / "photo.jpg"
    path.write_bytes(file_of(photo(64, 48), quality=91, comment=b"mine"))
    return path


def test_an_opened_jpeg_file_is_stored_as_it_is_read_or_unread(jpeg_file):
    for load in (False, True):
        with Image.open(jpeg_file) as image:
            if load:
                image.load()
            assert encoding("jpeg").encode(image) == jpeg_file.read_bytes()
            assert encoding("list[jpeg]").encode([image])[12:] == jpeg_file.read_bytes()
            assert image.tobytes() == Image.open(jpeg_file).tobytes()  # and can still be read


def test_what_was_read_from_a_dataset_is_stored_again_without_another_loss():
    for sample, read in zip(expected_mds("enc_images")["encoded"], expected_mds("enc_images")["samples"], strict=True):
        assert encoding("jpeg").encode(decoded("jpeg", sample["jpeg"])) == sample["jpeg"]
        assert encoding("list[jpeg]").encode(decoded("list[jpeg]", sample["list_jpeg"])) == sample["list_jpeg"]
        images = decoded("jpeg_array", sample["jpeg_array"])
        stored = [encoding("jpeg").encode(image) for image in images]
        assert encoding("jpeg_array").encode(stored) == sample["jpeg_array"]
        assert same_image(decoded("jpeg", sample["jpeg"]), read["jpeg"])


def thumbnail(image):
    image.thumbnail((16, 16))


def small_draft(image):
    image.draft("RGB", (32, 24))


def grey_draft(image):
    image.draft("L", image.size)


def painted(image):
    ImageDraw.Draw(image).rectangle((0, 0, 40, 40), fill=(255, 0, 0))


def pasted(image):
    image.paste((0, 255, 0), (0, 0, 40, 40))


@pytest.mark.parametrize("change", [thumbnail, small_draft, grey_draft, painted, pasted])
def test_an_image_changed_since_it_was_opened_is_stored_as_it_is_now(jpeg_file, change):
    with Image.open(jpeg_file) as image:
        change(image)
        found = returned("jpeg", image)
        assert (found.size, found.mode) == (image.size, image.mode)
        assert found.tobytes() == returned("jpeg", image.copy()).tobytes()
        assert encoding("jpeg").encode(image) != jpeg_file.read_bytes()


def test_an_image_whose_file_is_gone_or_another_is_stored_as_it_is(jpeg_file, tmp_path):
    original = jpeg_file.read_bytes()
    with Image.open(jpeg_file) as image:
        jpeg_file.unlink()
        assert encoding("jpeg").encode(image) == original  # it is still open
        image.load()
        assert returned("jpeg", image).size == (64, 48)
        for other in (file_of(photo(64, 48, seed=5)), PNG, b"", original[:300]):
            jpeg_file.write_bytes(other)
            again = returned("jpeg", image)
            assert again.tobytes() == returned("jpeg", image.copy()).tobytes()
        image.filename = str(tmp_path / "nowhere")
        assert returned("jpeg", image).size == (64, 48)


def test_a_damaged_jpeg_file_that_cannot_be_read_is_refused_as_pixels(jpeg_file):
    jpeg_file.write_bytes(jpeg_file.read_bytes()[:700])
    for name in ("pil", "png"):
        with Image.open(jpeg_file) as image, pytest.raises(ValueError, match="truncated"):
            encoding(name).encode(image)


def test_an_image_that_is_closed_is_refused(jpeg_file):
    image = Image.open(jpeg_file)
    image.close()
    for name in ("jpeg", "png"):
        with pytest.raises(ValueError, match="cannot store this image"):
            encoding(name).encode(image)


# Lists


@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_images_is_a_zero_a_count_sizes_and_the_images(name):
    element = encoding(LISTS[name])
    images = [photo(), photo(5, 7, "L"), photo(seed=3)]
    parts = [element.encode(image) for image in images]
    stored = struct.pack("<5I", 0, 3, *map(len, parts)) + b"".join(parts)
    assert encoding(name).encode(images) == stored
    assert encoding(name).encode(stored) == stored
    assert_same(
        [image.tobytes() for image in decoded(name, stored)], [decoded(LISTS[name], part).tobytes() for part in parts]
    )
    assert encoding(name).encode([]) == bytes(8)
    assert decoded(name, bytes(8)) == []


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_of_jpegs_is_a_count_sizes_and_the_files(name):
    files = [JPEG, PNG, file_of(photo(3, 3, "L"))]
    stored = struct.pack("<4I", 3, *map(len, files)) + b"".join(files)
    for given_ in (files, tuple(files), stored):
        assert encoding(name).encode(given_) == stored
    assert [image.size for image in decoded(name, stored)] == [(16, 8), (16, 8), (3, 3)]
    assert encoding(name).encode([]) == bytes(4)
    assert decoded(name, bytes(4)) == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("list[pil]", photo(), r"expected a list of images for list\[pil\], found PIL.Image.Image"),
        ("list[png]", (photo(),), "expected a list of images.*found tuple"),
        ("list[png]", [photo(), None], "image 1: expected a PIL.Image.Image, found None"),
        ("list[jpeg]", [photo(), JPEG], r"a PIL.Image.Image at position 1, found bytes; .* or declare jpeg_array"),
        ("list[jpeg]", [photo(mode="RGBA")], "image 0: Pillow cannot store this image as jpeg"),
        ("jpeg_array", [JPEG, photo()], r"a JPEG file as bytes at position 1, found PIL.Image.Image; .*list\[jpeg\]"),
        ("jpeg_array", [JPEG, b"no file"], "image 1: it is no image file that can be read"),
        ("jpeg_array", [bytearray(JPEG)], "position 0, found bytearray"),
        ("jpeg_array", "ab", "expected a list of JPEG files, as bytes, found str"),
    ],
)
def test_a_list_of_something_else_is_refused_with_the_place(name, value, message):
    with pytest.raises((TypeError, ValueError), match=message):
        encoding(name).encode(value)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("jpeg_array", b"", "ends before it says how many"),
        ("jpeg_array", b"\1\0\0", "ends before it says how many"),
        ("jpeg_array", b"\xff\xff\xff\xff", "says 4294967295 images, and ends inside their sizes, after 4 bytes"),
        ("jpeg_array", b"\1\0\0\0\0\0\0\0", "image 0: it is no image file"),
        ("jpeg_array", b"\1\0\0\0\xff\xff\xff\xff", "its 1 images have 4294967295 bytes, found 0"),
        ("jpeg_array", b"\0\0\0\0a", "its 0 images have 0 bytes, found 1"),
        ("list[pil]", b"", "begins with four zero bytes"),
        ("list[pil]", b"\0\0\0\1\0\0\0\0", "begins with four zero bytes"),
        ("list[pil]", bytes(4), "ends before it says how many"),
        ("list[pil]", bytes(4) + b"\2\0\0\0\0\0\0\0", "says 2 images, and ends inside their sizes"),
        ("list[pil]", bytes(4) + b"\1\0\0\0\0\0\0\0", "image 0: an image begins with 12 bytes, found 0"),
        ("list[pil]", bytes(9), "its 0 images have 0 bytes, found 1"),
    ],
)
def test_counts_and_sizes_that_cannot_be_are_named(name, data, message):
    with pytest.raises(ValueError, match=message):
        decoded(name, data)


STORED = {name: encoding(name).encode(photo(5, 4)) for name in ("pil", "jpeg", "png")}
STORED |= {name: encoding(name).encode([photo(3, 2), photo(2, 2)]) for name in LISTS}
STORED |= {name: encoding(name).encode([JPEG, JPEG]) for name in ARRAYS}
STORED["bits"] = encoding("pil").encode(photo(9, 2, "1"))


@given(name=st.sampled_from(sorted(STORED)), data=st.data())
def test_cut_lengthened_or_damaged_bytes_are_a_value_error_or_other_images_of_the_same_length(name, data):
    stored, name = STORED[name], "pil" if name == "bits" else name
    at = data.draw(st.integers(0, min(len(stored) - 1, 24)) | st.integers(0, len(stored) - 1))
    damaged = stored[:at] + bytes([data.draw(st.integers(0, 255))]) + stored[at + 1 :]
    for case in (damaged, stored[:at], stored + data.draw(st.binary(min_size=1, max_size=5))):
        try:
            found = decoded(name, case)
        except ValueError:
            continue
        if name == "pil":
            assert 12 + len(found.mode) + len(found.tobytes()) == len(case)
        if name in LISTS or name in ARRAYS:
            assert struct.unpack_from("<I", case, 4 if name in LISTS else 0) == (len(found),)


def test_without_pillow_encodings_have_names_and_say_what_to_install():
    script = """
import sys
sys.modules["PIL"] = None
from headrace.formats.mds.encodings import encoding
values = {"pil": 0, "jpeg": 0, "png": b"a", "list[png]": [0], "jpeg_array": [b"a"]}
values["jpegarray"] = bytes([1, 0, 0, 0, 1, 0, 0, 0, 97])
for name, value in values.items():
    try:
        encoding(name).encode(value)
    except ImportError as error:
        print(name, error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    names = ["pil", "jpeg", "png", "list[png]", "jpeg_array", "jpegarray"]
    assert done.stdout.splitlines() == [f"{name} images need Pillow: pip install 'headrace[images]'" for name in names]
