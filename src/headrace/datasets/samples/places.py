"""Which folder of a root a user means by a path, a URL or a store; and copies of a dataset that are to go."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from headrace.datasets.samples.index import INDEX
from headrace.datasets.samples.many_requests import delete_all
from headrace.datasets.samples.options import Place
from headrace.datasets.samples.parts import below
from headrace.errors import OptionError, PathOutsideRootError
from headrace.store import FolderStore, LocalStore, Store
from headrace.store.open import has_scheme, open_store
from headrace.store.store import checked_folder

__all__ = ["overlap", "part_folder", "remove_copies"]


def part_folder(url: Place | tuple[Place, Place], roots: list[Store]) -> str:
    """The folder, below the root, of the index that url names; a folder may be named instead of the index in it.

    roots is [root] or [local, remote]. Of a pair, each that lies in its root counts. OptionError for an index outside,
    since an index names files in its own folder and further down, and for a pair that names two parts.
    """
    if isinstance(url, tuple | list):
        if len(url) != 2:
            raise OptionError("index_file_urls", url, f"paths of {INDEX} files, or pairs (local, remote) of these")
        tried = [(url[0], roots[0]), (url[1], roots[-1])]
    else:
        tried = [(url, root) for root in roots]
    if not all(isinstance(place, Place) for place, _ in tried):
        raise OptionError("index_file_urls", url, f"paths of {INDEX} files, folders of a Store, or pairs of these")
    found = {folder for place, root in tried if (folder := _inside(place, root)) is not None}
    if len(found) == 1:
        return found.pop()
    if found:
        raise OptionError("index_file_urls", url, "a pair (local, remote) of the same part")
    where = " or ".join(root.location for root in roots)
    raise OptionError(
        "index_file_urls",
        url,
        f"an {INDEX} below {where}; pass as out the folder that holds all parts, or move the part",
    )


def overlap(one: Store, other: Store) -> bool:
    """Whether both are the same place, or one of them is inside the other."""
    return _inside(one, other) is not None or _inside(other, one) is not None


def remove_copies(store: Store, paths: Iterable[str]) -> None:
    """Remove the objects, and of a local directory the folders that are empty then, the directory itself included."""
    copies = LocalStore(store.root, fsync=False) if isinstance(store, LocalStore) else store
    folders = {""}
    removed = list(paths)
    delete_all(copies, removed)
    for path in removed:
        while path := path.rpartition("/")[0]:
            folders.add(path)
    if isinstance(copies, LocalStore):
        for folder in sorted(folders, reverse=True):  # what is inside comes before what it is in
            with contextlib.suppress(OSError):  # it holds something else
                os.rmdir(os.path.join(copies.location, folder))


def _inside(place: Place, root: Store) -> str | None:
    """The folder of root that place is, or whose index it is; None where it lies elsewhere."""
    if isinstance(place, Store):
        (base, folder), (root_base, root_folder) = _base(place), _base(root)
        if base is root_base:
            return _rest(folder, root_folder)
        if not (os.path.isabs(place.location) or _has_address(place)):  # it is what it is, whatever it is called
            return None
        place = place.location
    path = _path_in_directory(place, root) if os.path.isabs(root.location) else _path_in_store(place, root)
    if path is None:
        return None
    path = path.rstrip("/")
    try:
        return checked_folder(path.removesuffix(INDEX).rstrip("/") if f"/{path}".endswith(f"/{INDEX}") else path)
    except PathOutsideRootError:
        return None


def _base(store: Store) -> tuple[Store, str]:
    """The store that holds everything, and the folder of it that store is."""
    folder = ""
    while isinstance(store, FolderStore):
        folder = below(store.folder, folder)
        store = store.store
    return store, folder


def _rest(path: str, above: str) -> str | None:
    """What is left of path below the folder above; None where it lies elsewhere."""
    if path == above or not above:
        return path[len(above) :]
    above = above if above.endswith("/") else f"{above}/"
    return path[len(above) :] if path.startswith(above) else None


def _path_in_directory(place: str | Path, root: Store) -> str | None:
    try:
        full = LocalStore(place).location
    except ValueError:  # another kind of URL
        return None
    for path, above in ((full, root.location), (os.path.realpath(full), os.path.realpath(root.location))):
        if ".." not in path.split("/") and (rest := _rest(path, above)) is not None:
            return rest
    return None


def _path_in_store(place: str | Path, root: Store) -> str | None:
    """Of a store that is no directory: what follows its URL, or a path inside it."""
    text = str(place)
    if not (urlsplit(text).scheme or has_scheme(text)):
        return None if text.startswith("/") else text
    if (path := _rest(text, root.location)) is not None or not _has_address(root):
        return path
    try:
        return _rest(open_store(text).location, root.location)  # other spellings of the same URL
    except ValueError:
        return None


def _has_address(store: Store) -> bool:
    """Whether two stores with this location are the same place: of memories each is its own."""
    return store.capabilities.remote and has_scheme(store.location) and not store.location.startswith("memory:")
