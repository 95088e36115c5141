"""The examples, loaded by path: they are no part of the installed package."""

import importlib.util
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="session")
def examples():
    """The folder of the examples."""
    return EXAMPLES


@pytest.fixture(scope="session")
def load():
    """load("demo/records.py") -> the module."""

    def load_module(path):
        name = f"example_{Path(path).stem}"
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    return load_module


@pytest.fixture(scope="session")
def same_steps(load):
    """same_steps(folder, reference) -> number of steps; AssertionError where one is another."""
    return load("numbered_tokens.py").same_steps
