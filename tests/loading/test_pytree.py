"""Trees: what is a node, what is kept when leaves are changed, and what never runs."""

import collections
import dataclasses
import pickle
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace import tree_flatten, tree_leaves, tree_leaves_with_path, tree_map, tree_map_only, tree_unflatten


class Counted:
    """How often __init__ and __post_init__ ran, of all classes below."""

    runs: ClassVar[int] = 0


@dataclasses.dataclass
class Batch:
    tokens: Any
    name: Any = "none"
    length: Any = dataclasses.field(init=False)

    def __post_init__(self):
        Counted.runs += 1
        self.length = len(self.tokens)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    tokens: Any
    late: Any = dataclasses.field(init=False, repr=False, compare=False)


@dataclasses.dataclass
class Loaded:
    """Made with an argument that is no field, and with attributes that are none."""

    tokens: Any
    scale: dataclasses.InitVar[int]
    kind: ClassVar[str] = "a class variable"

    def __post_init__(self, scale):
        Counted.runs += 1
        self.cache = {"scale": scale}


class OwnSlot:
    __slots__ = ("__private", "seen")

    def set_private(self, value):
        self.__private = value

    def private(self):
        return self.__private


@dataclasses.dataclass(slots=True)
class Slotted(OwnSlot):
    tokens: Any


@dataclasses.dataclass
class Strict:
    """Refuses assignments, copies and being made without arguments."""

    tokens: Any

    def __setattr__(self, name, value):
        raise AttributeError(f"{name} cannot be set")

    def __init__(self, tokens):
        object.__setattr__(self, "tokens", tokens)

    def __getstate__(self):
        raise TypeError("cannot be copied")


class Undecorated(Batch):
    pass


class Pair(NamedTuple):
    left: Any
    right: Any


class Named(Pair):
    """A named tuple's subclass."""


class Numbers(list):
    note = None


class Row(tuple):
    note = None


class Fixed(Mapping):
    def __init__(self, **items):
        self.items_ = items

    def __getitem__(self, key):
        return self.items_[key]

    def __iter__(self):
        return iter(self.items_)

    def __len__(self):
        return len(self.items_)


class Record(collections.UserDict):
    pass


def doubled(tree):
    return tree_map(lambda leaf: leaf * 2, tree)


def test_no_constructor_runs_and_fields_that_are_not_its_arguments_are_changed_too():
    batch = Batch([1, 2], 3)
    Counted.runs = 0
    changed = doubled(batch)
    assert (changed.tokens, changed.name, changed.length) == ([2, 4], 6, 4)
    assert (batch.tokens, batch.name, batch.length) == ([1, 2], 3, 2)
    assert Counted.runs == 0


def test_a_field_that_was_never_set_stays_unset():
    locked = Locked(tokens=1)
    assert tree_leaves(locked) == [1]
    changed = doubled(locked)
    assert changed.tokens == 2
    assert not hasattr(changed, "late")
    object.__setattr__(locked, "late", 5)
    assert doubled(locked).late == 10


def test_attributes_that_are_no_fields_are_kept():
    loaded = Loaded(1, scale=3)
    loaded.note = "by hand"
    Counted.runs = 0
    changed = doubled(loaded)
    assert (changed.tokens, changed.cache, changed.note) == (2, {"scale": 3}, "by hand")
    assert changed.cache is loaded.cache
    assert Counted.runs == 0


def test_slots_of_classes_above_are_kept_and_private_ones():
    slotted = Slotted(1)
    slotted.seen = True
    slotted.set_private("p")
    changed = doubled(slotted)
    assert (changed.tokens, changed.seen, changed.private()) == (2, True, "p")


def test_classes_that_refuse_assignment_and_copies_are_nodes():
    assert doubled(Strict(4)).tokens == 8


def test_a_class_that_inherits_from_a_dataclass_is_one():
    changed = doubled(Undecorated([1]))
    assert (type(changed), changed.tokens, changed.length) == (Undecorated, [2], 2)


T = TypeVar("T")


@dataclasses.dataclass
class Box(Generic[T]):
    content: T


@dataclasses.dataclass
class Refusal(Exception):
    why: Any


class Module(torch.nn.Module):
    pass


@dataclasses.dataclass(eq=False)
class Layer(Module):
    scale: Any

    def __post_init__(self):
        super().__init__()


def test_generic_classes_are_nodes_and_exceptions_are_leaves():
    changed = doubled(Box[int](2))
    assert (type(changed), changed.content) == (Box, 4)
    refusal = Refusal(1)
    assert tree_leaves([refusal]) == [refusal]


def test_a_dataclass_of_another_making_is_put_together_with_all_it_had():
    class Described(Layer):
        pass

    layer = Described(3)
    layer.register_buffer("seen", torch.ones(1))
    changed = doubled(layer)
    assert (changed.scale, changed.seen.tolist()) == (6, [1])
    assert list(changed.state_dict()) == ["seen"]


@dataclasses.dataclass
class Checked:
    x: Any

    @property
    def y(self):
        return self._y

    @y.setter
    def y(self, value):
        self._y = f"set to {value}"


def test_properties_of_a_dataclass_are_left_alone():
    checked = Checked(1)
    checked.y = 5
    changed = doubled(checked)
    assert (changed.x, changed.y) == (2, "set to 5")


def test_fields_given_out_of_order_or_deleted_are_found():
    batch = Batch([1], 2)
    del batch.tokens
    assert tree_leaves_with_path(batch) == [(("name",), 2), (("length",), 1)]
    batch.tokens = [3]
    assert [leaf for _, leaf in tree_leaves_with_path(batch)] == [3, 2, 1]
    changed = doubled(batch)
    assert (changed.tokens, changed.name, changed.length) == ([6], 4, 2)


def test_classes_made_within_functions_are_nodes_each_by_itself():
    def made(default):
        @dataclasses.dataclass
        class Local:
            x: Any = default

        return Local()

    for number in range(3):
        assert doubled(made(number)).x == 2 * number


def test_named_tuples_lists_and_tuples_of_own_classes_keep_their_class_and_attributes():
    numbers, row = Numbers([1, 2]), Row((3, 4))
    numbers.note = row.note = "kept"
    for tree, expected in ((numbers, [2, 4]), (row, (6, 8)), (Pair(1, 2), (2, 4)), (Named(1, 2), (2, 4))):
        changed = doubled(tree)
        assert type(changed) is type(tree)
        assert changed == expected
        assert getattr(changed, "note", None) == getattr(tree, "note", None)
    assert numbers == [1, 2]


def test_mappings_keep_what_they_have_besides_their_items():
    factory = collections.defaultdict(list, b=1, a=2)
    changed = doubled(factory)
    assert (list(changed.items()), changed["new"]) == ([("b", 2), ("a", 4)], [])
    record = Record(b=1, a=2)
    record.note = "kept"
    changed = doubled(record)
    assert (type(changed), changed.data, changed.note) == (Record, {"b": 2, "a": 4}, "kept")
    assert record.data == {"b": 1, "a": 2}


@pytest.mark.parametrize("make", [Fixed, lambda **items: MappingProxyType(items)], ids=["own", "proxy"])
def test_a_mapping_that_cannot_be_changed_becomes_a_dict_in_its_order(make):
    changed = doubled(make(b=1, a=2))
    assert type(changed) is dict
    assert list(changed.items()) == [("b", 2), ("a", 4)]


def test_results_of_torch_are_nodes_and_sizes_are_leaves():
    values, indices = tree_map(lambda leaf: leaf + 1, torch.max(torch.zeros(2, 2), 0))
    assert (values.tolist(), indices.tolist()) == ([1, 1], [1, 1])
    assert tree_leaves(torch.Size([1, 2])) == [torch.Size([1, 2])]


def test_only_leaves_of_the_types_asked_for_are_changed():
    tree = {"a": torch.ones(1), "b": np.ones(1), "c": [1, "s", None, 2.5], "d": Batch("ab")}
    changed = tree_map_only(torch.Tensor, lambda tensor: tensor + 1, tree)
    assert changed["a"].tolist() == [2]
    assert changed["b"] is tree["b"]
    assert changed["c"] == tree["c"]
    assert tree_map_only((int, float), lambda number: -number, tree)["c"] == [-1, "s", None, -2.5]
    assert tree_map_only(str, str.upper, tree)["d"] == tree_map_only(str, str.upper, Batch("ab"))


def test_a_tensor_that_is_a_subclass_is_a_leaf():
    parameter = torch.nn.Parameter(torch.ones(1))
    assert tree_leaves([parameter]) == [parameter]
    assert tree_map_only(torch.Tensor, lambda tensor: 1, [parameter]) == [1]


def test_what_is_leaf_says_is_not_looked_into_nor_registered():
    @dataclasses.dataclass
    class Opaque:
        x: Any

    opaque = Opaque([1, 2])
    leaves, spec = tree_flatten({"a": opaque, "b": [3]}, is_leaf=lambda node: isinstance(node, Opaque))
    assert leaves == [opaque, 3]
    assert tree_unflatten(spec, [4, 5]) == {"a": 4, "b": [5]}
    Opaque.__dataclass_fields__ = {}  # had it been met as a node, its fields would be known already
    assert tree_leaves(opaque) == []


def test_a_structure_takes_other_leaves_and_is_equal_where_nodes_are():
    leaves, spec = tree_flatten(Batch([1, 2], torch.ones(1)))
    assert tree_unflatten(spec, range(4)).tokens == [0, 1]
    with pytest.raises(ValueError, match="few leaves"):
        tree_unflatten(spec, leaves[:-1])
    with pytest.raises(ValueError, match="many leaves"):
        tree_unflatten(spec, [*leaves, 1])
    other, same = Loaded(1, 2), Loaded(3, 4)
    assert tree_flatten(other)[1] == tree_flatten(same)[1]  # whatever their other attributes are
    assert tree_flatten(other)[1] != spec
    assert hash(tree_flatten(other)[1]) == hash(tree_flatten(same)[1])
    assert "Loaded['tokens']" in repr(tree_flatten(other)[1])


def test_a_structure_travels_to_another_process():
    tree = {"a": Batch([1, 2]), "b": Numbers([3])}
    leaves, spec = tree_flatten(tree)
    assert tree_unflatten(pickle.loads(pickle.dumps(spec)), leaves) == tree


def test_paths_name_keys_fields_and_positions():
    tree = {"z": [Batch([1], name={"k": 2})], 3: Pair(4, Record(a=5))}
    assert tree_leaves_with_path(tree) == [
        ((3, 0), 4),
        ((3, 1, "a"), 5),
        (("z", 0, "tokens", 0), 1),
        (("z", 0, "name", "k"), 2),
        (("z", 0, "length"), 1),
    ]


def test_classes_that_several_threads_meet_at_once_are_registered_once():
    for _ in range(20):
        kinds = [dataclasses.make_dataclass(f"Made{number}", ["x"]) for number in range(10)]
        failed, start = [], threading.Barrier(4)

        def walk(kinds=kinds, failed=failed, start=start):
            start.wait()
            try:
                assert doubled([kind(1) for kind in kinds]) == [kind(2) for kind in kinds]
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=walk) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []


leaves = st.integers() | st.text(max_size=2) | st.booleans()
trees = st.recursive(
    leaves | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.lists(inner, max_size=3).map(Numbers)
        | st.dictionaries(st.integers() | st.text(max_size=2), inner, max_size=3)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3).map(Record)
        | st.builds(Pair, inner, inner)
        | st.builds(lambda x: Locked(tokens=x), inner)
        | st.builds(lambda x: Loaded(x, 1), inner)
    ),
    max_leaves=12,
)


@given(trees)
def test_a_tree_is_the_same_when_put_together_again(tree):
    found, spec = tree_flatten(tree)
    assert tree_unflatten(spec, found) == tree
    assert tree_map(lambda leaf: leaf, tree) == tree
    assert [leaf for _, leaf in tree_leaves_with_path(tree)] == found == tree_leaves(tree)
    paths = [path for path, _ in tree_leaves_with_path(tree)]
    assert len(set(paths)) == len(paths)
    assert tree_leaves(tree_map(lambda leaf: (leaf,), tree)) == found


def test_what_a_model_of_transformers_gives_is_a_node():
    transformers = pytest.importorskip("transformers")
    output = transformers.modeling_outputs.BaseModelOutput(last_hidden_state=torch.ones(1))
    changed = doubled(output)
    assert type(changed) is type(output)
    assert (changed.last_hidden_state.tolist(), changed["last_hidden_state"].tolist()) == ([2], [2])
    batch = transformers.BatchEncoding({"input_ids": torch.ones(1, 2)})
    changed = doubled(batch)
    assert type(changed) is type(batch)
    assert (changed["input_ids"].tolist(), batch["input_ids"].tolist()) == ([[2, 2]], [[1, 1]])
