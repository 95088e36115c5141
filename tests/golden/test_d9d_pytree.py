"""What d9d 0.24 recorded of trees: the same leaves, paths and order of keys; and right where d9d refused."""

import collections
import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headrace import tree_leaves_with_path, tree_map

CASES = json.loads((Path(__file__).parent / "d9d" / "pytree.json").read_text(encoding="utf-8"))["cases"]


@dataclasses.dataclass
class Inner:
    a: Any
    tag: Any


@dataclasses.dataclass
class Outer:
    inner: Any
    b: Any


@dataclasses.dataclass(frozen=True)
class Fr:
    x: Any


@dataclasses.dataclass(slots=True)
class Sl:
    y: Any
    z: Any


@dataclasses.dataclass(kw_only=True)
class Kw:
    b: Any
    a: Any


@dataclasses.dataclass
class Late:
    x: Any
    n: Any = dataclasses.field(init=False, default=7)


@dataclasses.dataclass
class Post:
    x: Any
    runs: dataclasses.InitVar[int] = 0

    def __post_init__(self, runs):
        self.times = 1


@dataclasses.dataclass
class Sub(Inner):
    extra: Any


class NT(NamedTuple):
    left: Any
    right: Any


TREES = {
    "dict keys sorted": {"b": 2, "a": 1, "c": 3},
    "nested containers": {"a": [1, 2], "b": (3,)},
    "nested dataclass": Outer(Inner(1, "x"), 2),
    "dataclass in dict": {"k": Inner(1, "y"), "t": 2},
    "list of dataclasses": [Inner(0, "m0"), Inner(1, "m1")],
    "frozen": Fr(1),
    "slots": Sl(1, 2),
    "kw_only keeps declaration order": Kw(a=1, b=2),
    "init=False field": Late(1),
    "post_init": Post(1),
    "subclass": Sub(1, "t", 2),
    "None leaf": {"a": None, "b": 1},
    "None alone": None,
    "empty dict": {},
    "empty list": [],
    "namedtuple": NT(1, 2),
    "OrderedDict": collections.OrderedDict(b=1, a=2),
    "defaultdict": collections.defaultdict(int, b=1, a=2),
    "deque": collections.deque([1, 2]),
    "set is a leaf": {1},
    "mixed key types": {"a": 1, 2: 3},
    "int keys": {10: "x", 9: "y"},
    "bool leaf": True,
    "dataclass type itself": Inner,
    "string leaf": "s",
}


def recorded(leaf):
    return leaf if isinstance(leaf, int | str) else str(leaf)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_a_tree_has_d9d_s_leaves_paths_and_order_of_keys(case):
    tree = TREES[case["case"]]
    found = [[list(path), recorded(leaf)] for path, leaf in tree_leaves_with_path(tree)]
    mapped = tree_map(lambda leaf: leaf, tree)
    assert type(mapped) is type(tree)
    assert mapped == tree
    if case["case"] == "init=False field":
        assert found == [[["x"], 1], [["n"], 7]]  # d9d refuses it
        return
    if case["case"] == "dataclass type itself":
        assert found == [[[], str(Inner)]]  # recorded under the name it had there
        return
    assert found == case["leaves_with_path"]
    assert type(mapped).__name__ == case["map_type"]
    if "map_key_order" in case:
        assert [str(key) for key in tree] == case["input_key_order"]
        assert [str(key) for key in mapped] == case["map_key_order"]


def test_every_recorded_tree_is_tested():
    assert {case["case"] for case in CASES} == set(TREES)
