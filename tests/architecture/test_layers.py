"""The shape of the package: who imports whom, how large, under which names, and at which cost."""

import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

ROOT = Path(__file__).parents[2]
SOURCE = Path(headrace.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
PACKAGES = ["headrace", *(f"headrace.{module.name}" for module in pkgutil.iter_modules([str(SOURCE)]) if module.ispkg)]
DRAWERS = {"utils", "util", "common", "base", "core", "helpers", "misc"}  # names that say nothing of the content


def relative(path):
    return str(path.relative_to(SOURCE))


def test_the_layers_and_the_three_islands_hold():
    # Through the interpreter, so that a checkout without an activated environment works too.
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command; lint_imports_command()",
        "--no-cache",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_no_file_is_longer_than_four_hundred_lines():
    lengths = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {path: length for path, length in lengths.items() if length > 400} == {}


def test_no_module_is_a_drawer():
    names = {
        relative(path): {part.removesuffix(".py").strip("_") for part in path.relative_to(SOURCE).parts}
        for path in FILES
    }
    assert [path for path, parts in names.items() if parts & DRAWERS] == []


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_has_a_door_with_a_sign_and_a_sorted_list(name):
    package = importlib.import_module(name)
    assert package.__doc__, f"{name} needs a docstring: what this room is for"
    exported = package.__all__
    assert len(set(exported)) == len(exported)
    assert exported == sorted(exported, key=sorting_key)
    for public in exported:
        assert getattr(package, public) is not None, public


def sorting_key(name):
    """The order that ruff keeps in __all__: CONSTANTS, then Classes, then functions."""
    kind = 0 if name.isupper() else 1 if name[:1].isupper() else 2
    return kind, name


def test_every_folder_is_a_package():
    folders = {path.parent for path in FILES}
    assert [relative(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_importing_headrace_is_fast_and_needs_no_torch():
    script = """
import json, sys, time
start = time.perf_counter()
import headrace
took = time.perf_counter() - start
print(json.dumps([took, "torch" in sys.modules]))
"""
    took_s, torch = [], set()
    for _ in range(5):  # the best of five: the machine may be busy with something else
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
        seconds, imported = json.loads(done.stdout)
        took_s.append(seconds)
        torch.add(imported)
    assert torch == {False}
    assert min(took_s) < 0.15
