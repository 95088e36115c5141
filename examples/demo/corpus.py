"""A real English corpus of 20 MB or more, from where this machine has one.

Debian's documentation packages where `apt-get download` works (nothing is installed); else the documentation that is
already here: the docstrings and text files of the standard library and of the installed Python packages.
"""

import gzip
import hashlib
import json
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

__all__ = ["Corpus", "collect"]

MIN_BYTES = 20_000_000
MIN_DOCUMENT_CHARS = 200
# In order of preference, added until the corpus is large enough. Each Debian release has the manual of one Python.
PACKAGES = ("perl-doc", "python3.11-doc", "python3.13-doc", "python3.12-doc", "anarchism", "debian-handbook")
TEXT_ENDINGS = (".txt", ".rst", ".md", ".pod", ".txt.gz", ".rst.gz", ".md.gz", ".pod.gz")
DOCSTRING = re.compile(r'"""(.*?)"""|\'\'\'(.*?)\'\'\'', re.DOTALL)
Document = tuple[str, str]  # where it came from, its text


class Corpus(NamedTuple):
    """JSON-lines files with one document a line, and what they hold."""

    files: tuple[Path, ...]
    source: str  # for people
    num_documents: int
    text_bytes: int


def collect(folder: Path) -> Corpus:
    """The corpus in folder, made there by the first call and only read by later ones.

    Raises SystemExit where this machine has fewer than 20 MB of documentation to offer.
    """
    summary = folder / "summary.json"
    if summary.exists():
        found = json.loads(summary.read_text(encoding="utf-8"))
        return Corpus(
            tuple(folder / name for name in found["files"]),
            found["source"],
            found["num_documents"],
            found["text_bytes"],
        )
    shutil.rmtree(folder, ignore_errors=True)  # an interrupted attempt
    folder.mkdir(parents=True)
    corpus = _from_debian(folder) or _from_python(folder) or _refuse()
    content = corpus._asdict() | {"files": [file.name for file in corpus.files]}
    summary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")  # last: it says that the rest is whole
    return corpus


def _refuse() -> NoReturn:
    raise SystemExit(
        f"no corpus: `apt-get download {PACKAGES[0]}` does not work here, and the documentation of the installed "
        f"Python packages is less than {MIN_BYTES:,} bytes; install more packages, or apt-get update first"
    )


def _from_debian(folder: Path) -> Corpus | None:
    files: list[Path] = []
    names: list[str] = []
    num_documents = text_bytes = 0
    for package in PACKAGES:
        if text_bytes >= MIN_BYTES:
            break
        unpacked = _unpacked(package, folder / "packages")
        if unpacked is None:
            continue
        file = folder / f"{package}.jsonl"
        documents, size = _write(file, _texts_below(unpacked))
        files.append(file)
        names.append(package)
        num_documents += documents
        text_bytes += size
    shutil.rmtree(folder / "packages", ignore_errors=True)
    if text_bytes < MIN_BYTES:
        return None
    return Corpus(tuple(files), "Debian: " + ", ".join(names), num_documents, text_bytes)


def _unpacked(package: str, folder: Path) -> Path | None:
    """The folder with the package's files, or None where it cannot be had."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return None
    folder.mkdir(exist_ok=True)
    try:
        command = ["apt-get", "download", "-qq", package]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)
        archive = next(iter(folder.glob(f"{package}_*.deb")))
        target = folder / package
        subprocess.run(["dpkg-deb", "-x", archive, target], check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.SubprocessError, StopIteration):
        return None
    return target


def _texts_below(folder: Path) -> Iterator[Document]:
    for path in sorted(folder.rglob("*")):
        if path.name.endswith(TEXT_ENDINGS) and path.is_file() and not path.is_symlink():
            raw = path.read_bytes()
            if path.suffix == ".gz":
                raw = gzip.decompress(raw)
            yield path.relative_to(folder).as_posix(), raw.decode("utf-8", "replace")


def _from_python(folder: Path) -> Corpus | None:
    paths = sysconfig.get_paths()
    library, packages = Path(paths["stdlib"]), Path(paths["purelib"])
    file = folder / "python.jsonl"
    num_documents, text_bytes = _write(file, (*_documentation(library), *_documentation(packages)))
    if text_bytes < MIN_BYTES:
        return None
    source = "documentation of the standard library and the installed Python packages"
    return Corpus((file,), source, num_documents, text_bytes)


def _documentation(root: Path) -> Iterator[Document]:
    """One document a module (its docstrings) and one a text file; packages installed below a library are left out."""
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if name.startswith("site-packages/") or not path.is_file():
            continue
        if path.suffix in (".txt", ".rst", ".md") or path.name == "METADATA":
            yield name, path.read_text(encoding="utf-8", errors="replace")
        elif path.suffix == ".py":
            found = DOCSTRING.findall(path.read_text(encoding="utf-8", errors="replace"))
            yield name, "\n\n".join(double or single for double, single in found)


def _write(file: Path, documents: Iterable[Document]) -> tuple[int, int]:
    """How many documents were written and the bytes of their text, without short ones and exact repeats."""
    seen: set[bytes] = set()
    text_bytes = 0
    with file.open("w", encoding="utf-8") as lines:
        for source, text in documents:
            digest = hashlib.sha256(text.encode()).digest()
            if len(text) < MIN_DOCUMENT_CHARS or digest in seen:
                continue
            seen.add(digest)
            text_bytes += len(text.encode())
            lines.write(json.dumps({"text": text, "source": source}) + "\n")
    return len(seen), text_bytes
