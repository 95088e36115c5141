"""Trees of tensors: batches of any shape, walked by optree.

    Batch(tokens={"ids": t1, "mask": t2}, name="a")      leaves  t1, t2, "a"
                                                         paths   (tokens, ids), (tokens, mask), (name,)

Nodes are mappings, lists, tuples, named tuples, deques and dataclasses; a class that optree does not know is registered
with it when it is first met, in a namespace of Headrace's own. Everything else is a leaf, but for None, which is part
of the structure. Leaves come by sorted key in mappings (an OrderedDict: as it stands) and as declared in dataclasses.

A tree that is put together again is a copy of the one that was taken apart, with other leaves. No `__init__` and no
`__post_init__` runs, and what an object has besides its leaves is kept: attributes that are not fields, a defaultdict's
factory. Such an attribute is kept as it is: one that was computed from the leaves is not computed again.
"""

import copy
import dataclasses
import threading
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, TypeAlias

import optree
from optree import PyTreeSpec
from optree.utils import total_order_sorted
from torch import Size, Tensor

__all__ = [
    "PyTreeSpec",
    "tree_flatten",
    "tree_leaves",
    "tree_leaves_with_path",
    "tree_map",
    "tree_map_only",
    "tree_unflatten",
]

NAMESPACE = "headrace"

IsLeaf: TypeAlias = Callable[[Any], bool]


def tree_flatten(tree: Any, is_leaf: IsLeaf | None = None) -> tuple[list[Any], PyTreeSpec]:
    """The leaves of tree in order, and what is left when they are taken out.

    A node for which is_leaf gives True is a leaf, with all that is in it.
    """
    return optree.tree_flatten(tree, _stop(is_leaf), namespace=NAMESPACE)


def tree_unflatten(spec: PyTreeSpec, leaves: Iterable[Any]) -> Any:
    """The tree of this structure with these leaves; ValueError for too few or too many of them."""
    return optree.tree_unflatten(spec, leaves)


def tree_leaves(tree: Any, is_leaf: IsLeaf | None = None) -> list[Any]:
    """The leaves of tree in order; see tree_flatten."""
    return optree.tree_leaves(tree, _stop(is_leaf), namespace=NAMESPACE)


def tree_leaves_with_path(tree: Any, is_leaf: IsLeaf | None = None) -> list[tuple[tuple[Any, ...], Any]]:
    """(path, leaf) of each leaf in order; a path has keys, names of fields, and positions, from the top down."""
    paths, leaves, _ = optree.tree_flatten_with_path(tree, _stop(is_leaf), namespace=NAMESPACE)
    return list(zip(paths, leaves, strict=True))


def tree_map(f: Callable[[Any], Any], tree: Any) -> Any:
    """A tree of the same structure with f of every leaf; dicts keep the order of their keys."""
    return optree.tree_map(f, tree, is_leaf=_no_leaf, namespace=NAMESPACE)


def tree_map_only(types: type | tuple[type, ...], f: Callable[[Any], Any], tree: Any) -> Any:
    """A tree of the same structure with f of every leaf of these types; other leaves are kept as they are."""
    return optree.tree_map(
        lambda leaf: f(leaf) if isinstance(leaf, types) else leaf, tree, is_leaf=_no_leaf, namespace=NAMESPACE
    )


# Classes that need no look any more: what optree knows, what was registered here, and common leaves.
_SEEN: set[type] = {dict, list, tuple, str, bytes, bool, int, float, type(None), Size, Tensor}
_registering = threading.Lock()  # batches are walked in several threads, and a class can be registered once


def _no_leaf(node: Any) -> bool:
    """Not a leaf by anybody's wish. optree asks before it looks a class up, so this is the moment to register it."""
    if type(node) not in _SEEN:
        _meet(type(node))
    return False


def _stop(is_leaf: IsLeaf | None) -> IsLeaf:
    return _no_leaf if is_leaf is None else lambda node: is_leaf(node) or _no_leaf(node)


def _meet(kind: type) -> None:
    with _registering:
        if kind in _SEEN:
            return
        if optree.register_pytree_node.get(kind, namespace=NAMESPACE) is None and not _is_tuple_by_name(kind):
            if issubclass(kind, Mapping):
                _register(kind, _flatten_mapping, _mapping)
            elif dataclasses.is_dataclass(kind) and not issubclass(kind, BaseException):
                _register_dataclass(kind)
            elif issubclass(kind, list):
                _register(kind, _flatten_list, _list)
            elif issubclass(kind, tuple):
                _register(kind, _flatten_tuple, _tuple)
        _SEEN.add(kind)


def _is_tuple_by_name(kind: type) -> bool:
    """Whether optree takes kind for a named tuple or a struct sequence, as torch.max gives, by itself."""
    return optree.is_namedtuple_class(kind) or optree.is_structseq_class(kind)


class _Kept:
    """What a node has besides its leaves. Two of the same class with the same entries are the same structure."""

    __slots__ = ("entries", "kind", "rest")

    def __init__(self, kind: type, entries: tuple[Any, ...], rest: Any) -> None:
        self.kind = kind
        self.entries = entries
        self.rest = rest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kept) and (self.kind, self.entries) == (other.kind, other.entries)

    def __hash__(self) -> int:
        return hash((self.kind, self.entries))

    def __repr__(self) -> str:
        return f"{self.kind.__name__}{list(self.entries)}"


_Flat: TypeAlias = tuple[Iterable[Any], _Kept, tuple[Any, ...]]


def _register(kind: Any, flatten: Callable[[Any], _Flat], unflatten: Callable[[Any, Iterable[Any]], Any]) -> None:
    optree.register_pytree_node(kind, flatten, unflatten, namespace=NAMESPACE)


def _register_dataclass(kind: type) -> None:
    names = tuple(field.name for field in dataclasses.fields(kind))
    simple = _Kept(kind, names, None)
    has_dict_only = kind.__dictoffset__ != 0 and not any(vars(above).get("__slots__") for above in kind.__mro__)

    def flatten(node: Any) -> _Flat:
        if has_dict_only and tuple(node.__dict__) == names:  # as most are: it has its fields, and nothing else
            return tuple(node.__dict__.values()), simple, names
        present = tuple(name for name in names if hasattr(node, name))  # field(init=False) may never have been set
        children = [getattr(node, name) for name in present]
        rest = _attributes(node)
        for name in present:
            rest.pop(name, None)
        return children, _Kept(kind, present, rest), present

    _register(kind, flatten, _dataclass)


def _dataclass(kept: _Kept, children: Iterable[Any]) -> Any:
    node: Any = object.__new__(kept.kind)
    fields = zip(kept.entries, children, strict=True)
    if kept.rest is None:
        node.__dict__.update(fields)
        return node
    for name, value in (*kept.rest.items(), *fields):
        object.__setattr__(node, name, value)  # frozen ones, too
    return node


def _flatten_mapping(node: Mapping[Any, Any]) -> _Flat:
    keys = tuple(total_order_sorted(node))
    rest = copy.copy(node) if isinstance(node, MutableMapping) else list(node)
    return [node[key] for key in keys], _Kept(type(node), keys, rest), keys


def _mapping(kept: _Kept, children: Iterable[Any]) -> Any:
    """A copy with other values; a dict for a mapping that cannot be changed."""
    items = dict(zip(kept.entries, children, strict=True))
    if isinstance(kept.rest, list):
        return {key: items[key] for key in kept.rest}
    node = copy.copy(kept.rest)
    for key, value in items.items():
        node[key] = value
    return node


def _flatten_list(node: list[Any]) -> _Flat:
    return node, _Kept(type(node), tuple(range(len(node))), copy.copy(node)), tuple(range(len(node)))


def _list(kept: _Kept, children: Iterable[Any]) -> Any:
    node = copy.copy(kept.rest)
    node[:] = children
    return node


def _flatten_tuple(node: tuple[Any, ...]) -> _Flat:
    return node, _Kept(type(node), tuple(range(len(node))), _attributes(node)), tuple(range(len(node)))


def _tuple(kept: _Kept, children: Iterable[Any]) -> Any:
    node: Any = tuple.__new__(kept.kind, children)
    for name, value in kept.rest.items():
        object.__setattr__(node, name, value)
    return node


def _attributes(node: object) -> dict[str, Any]:
    """Everything in its __dict__ and its slots, by name, whatever its class says of copies."""
    state = object.__getstate__(node)
    in_dict, in_slots = state if isinstance(state, tuple) else (state, None)
    return {**(in_dict or {}), **(in_slots or {})}
