"""What the tests of every kind need on Headrace's side."""

from headrace import MmapIO, PosixPreadIO, SeekIO

INTERFACES = (None, MmapIO(), PosixPreadIO(), SeekIO())


def data_files(root):
    """Relative path -> bytes of all files but Headrace's own `.headrace/` and `headrace.json`."""
    found = {path.relative_to(root): path for path in root.rglob("*") if path.is_file()}
    return {
        str(path): place.read_bytes()
        for path, place in found.items()
        if ".headrace" not in path.parts and path.name != "headrace.json"
    }
