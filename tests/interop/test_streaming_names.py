"""The page for those who come from Streaming has every public name that mosaicml-streaming itself has."""

import ast
import fnmatch
import re
import subprocess
from pathlib import Path

import pytest

from interop.conftest import STREAMING

pytestmark = pytest.mark.interop
PAGE = Path(__file__).parents[2] / "docs" / "migrating-from-streaming.md"
CLASSES = {
    "base/dataset.py": ["StreamingDataset"],
    "base/stream.py": ["Stream"],
    "base/dataloader.py": ["StreamingDataLoader"],
    "base/local.py": ["LocalDataset"],
    "base/format/base/writer.py": ["Writer", "JointWriter", "SplitWriter"],
    "base/format/mds/writer.py": ["MDSWriter"],
    "base/format/json/writer.py": ["JSONWriter"],
    "base/format/xsv/writer.py": ["XSVWriter", "CSVWriter", "TSVWriter"],
}


def names_of_module(tree):
    """What its __all__ lists, or else every public class and function."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and "__all__" in map(ast.unparse, node.targets):
            return set(ast.literal_eval(node.value))
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return {name for name in defined if not name.startswith("_")}


def names_of_class(definition):
    """Methods, arguments of the constructor, and attributes that any method sets."""
    found = set()
    for method in definition.body:
        if isinstance(method, ast.FunctionDef):
            found.add(method.name)
            if method.name == "__init__":
                found |= {argument.arg for argument in (*method.args.args, *method.args.kwonlyargs)}
            stored = (node for node in ast.walk(method) if isinstance(node, ast.Attribute))
            found |= {
                node.attr for node in stored if isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
            }
    return {name for name in found - {"self"} if not name.startswith("_")}


def names_of_streaming(root):
    """All of them, but for the scripts that convert known datasets."""
    found = set()
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        if "convert" not in place.parts:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found |= names_of_module(tree)
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and node.name in CLASSES.get(place.as_posix(), ()):
                    found |= names_of_class(node)
    return found


def test_every_public_name_of_streaming_is_on_the_page(streaming):
    command = [STREAMING, "-c", "import streaming; print(streaming.__path__[0])"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    names = names_of_streaming(Path(done.stdout.strip()))
    assert {"StreamingDataset", "merge_index", "shuffle_seed", "evict_shard"} <= names
    quoted = set(re.findall(r"[\w*]+", " ".join(PAGE.read_text(encoding="utf-8").split("`")[1::2])))
    families = [name for name in quoted if name.count("*") == 1 and len(name) > 6]
    missing = [name for name in names - quoted if not any(fnmatch.fnmatchcase(name, family) for family in families)]
    assert sorted(missing) == []
