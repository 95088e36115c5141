"""Samples of any columns in any format: what is written is read back, and what was damaged never becomes another.

Where nothing else is said, places are `MemoryStore`s; the stores' own laws say that all others behave the same.
"""

import json
from functools import partial

import numpy as np
from hypothesis import event, given, reject, settings
from hypothesis import strategies as st

from golden.tagged import identical
from headrace.datasets import SampleDataset
from headrace.errors import CorruptShardError, FieldError, HeadraceError, OptionError, StoreError, WriteError
from headrace.formats.digests import HASH_NAMES
from headrace.store import MemoryStore
from headrace.testing import FaultStore, Refuse, Rule
from sample_columns import ANY_COLUMNS, LINES, SAFE_COLUMNS
from sample_scenes import CODECS, WRITERS, stored

many = settings(max_examples=2 * settings.default.max_examples)
compressions = st.none() | st.sampled_from([*CODECS, "br:2", "bz2:1", "gz:1", "zstd:1", "zstd:9"])
no_digests = st.just([])
digested = st.lists(st.sampled_from(HASH_NAMES), min_size=1, max_size=3, unique=True)
some_or_no_digests = digested | no_digests
limits = st.none() | st.integers(0, 600) | st.sampled_from(["1kb", 1 << 26])


@st.composite
def datasets(draw, columns=ANY_COLUMNS, hashes=some_or_no_digests, compression=compressions):
    """A format with columns, options for its writer, and samples: (value given, value to be read) of each column."""
    shard_format = draw(st.sampled_from(["mds", "mds", *WRITERS]))
    options = {
        "hashes": draw(hashes),
        "compression": draw(compression),
        "size_limit": draw(limits),
        "max_workers": draw(st.sampled_from([1, 3])),
    }
    if shard_format == "mds":
        options["allow_unsafe_types"] = True
    else:
        columns = st.sampled_from(LINES)
        options["newline"] = draw(st.sampled_from(["\n", "\n", "\r\n", "é\n"]))
    if shard_format == "xsv":
        options["separator"] = draw(st.sampled_from([";", "||", "aba", "\0"]))
    chosen = draw(st.dictionaries(st.text(max_size=3), columns, min_size=1, max_size=4))
    values = st.fixed_dictionaries({name: column.values for name, column in chosen.items()})
    samples = draw(st.lists(values, max_size=8))
    options["columns"] = {name: column.encoding for name, column in chosen.items()}
    flushes = draw(st.frozensets(st.integers(0, 8), max_size=3))
    return shard_format, options, samples, flushes


def attempt(function, kind=CorruptShardError):
    """What it returns, and the error that it raises instead."""
    try:
        return function(), None
    except kind as error:
        return None, error


def opened(store, dataset, **options):
    shard_format, given, *_ = dataset
    writer, error = attempt(lambda: WRITERS[shard_format](out=store, **given, **options), OptionError)
    if error is not None:  # lines of text do not take every name
        assert error.option == "columns"
        reject()
    return writer


def fill(writer, dataset, skipped=0):
    """Write the samples but the first ones that were taken before; the numbers of those that are taken."""
    shard_format, _, samples, flushes = dataset
    taken = []
    for number, sample in enumerate(samples):
        if number < skipped:
            continue
        given = {name: given for name, (given, _) in sample.items()}
        _, error = attempt(lambda given=given: writer.write(given), FieldError)
        if error is not None:  # lines of text do not take every value
            assert shard_format in ("csv", "tsv", "xsv")
            assert f"sample {writer.num_samples}" in str(error)
            continue
        taken.append(number)
        if number in flushes:
            writer.flush_shard()
    return taken


def write(dataset):
    """A store with the dataset, and its samples as they are to be read."""
    store = MemoryStore()
    with opened(store, dataset) as writer:
        taken = fill(writer, dataset)
    samples = dataset[2]
    return store, [{name: samples[number][name][1] for name in sorted(samples[number])} for number in taken]


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert same(one, other), f"{one} is not {other}"


def same(one, other):
    return list(one) == list(other) and all(identical(one[name], other[name]) for name in one)


def index_of(store):
    return json.loads(store.get("index.json"))["shards"]


reading = partial(SampleDataset, allow_unsafe_types=True)


@many
@given(dataset=datasets(), cut=st.slices(9), data=st.data())
def test_what_the_writer_takes_is_read_back_and_no_shard_is_above_the_limit(dataset, cut, data):
    store, expected = write(dataset)
    shard_format, options, *_ = dataset
    found = reading(store, verify=bool(options["hashes"]))
    assert_same([found[number] for number in range(len(found))], expected)
    assert_same(found[cut], expected[cut])
    assert found.verify() == []
    numbers = data.draw(
        st.lists(st.integers(-len(expected), len(expected) - 1), max_size=9) if expected else st.just([])
    )
    assert_same(found.__getitems__(numbers), [expected[number] for number in numbers])
    names = data.draw(st.lists(st.sampled_from(sorted(options["columns"])), min_size=1, unique=True))
    some = reading(store, columns=names)
    assert [set(sample) for sample in some] == [set(names)] * len(expected)
    assert all(identical(one[name], other[name]) for one, other in zip(some, expected, strict=True) for name in names)
    shards = index_of(store)
    assert [entry["samples"] for entry in shards] == found.shard_lengths.tolist()
    limit = shards[0]["size_limit"] if shards else None
    if limit:
        header = int(
            found.lengths.size and shards[0]["raw_data"]["bytes"] - found.lengths[: shards[0]["samples"]].sum()
        )
        unseen = header if shard_format in ("csv", "tsv", "xsv") else 0
        assert all(
            entry["raw_data"]["bytes"] <= limit + unseen or entry["samples"] == 1
            for entry in shards
            if entry["samples"]
        )
    assert all(path.startswith("shard.") or path == "index.json" for path in stored(store))


def damaged(draw, store, paths):
    """The store with one byte of one file flipped, removed, doubled, or the file cut there; which file, which byte."""
    files = stored(store)
    path = draw(st.sampled_from(sorted(path for path in paths if files[path])))
    raw = bytearray(files[path])
    at = draw(st.integers(0, len(raw) - 1))
    kind = draw(st.sampled_from(["flipped", "flipped", "flipped", "removed", "doubled", "cut", "gone"]))
    match kind:
        case "flipped":
            raw[at] ^= draw(st.integers(1, 255))
        case "removed":
            del raw[at]
        case "doubled":
            raw.insert(at, raw[at])
        case "cut":
            del raw[at:]
    event(kind)
    other = MemoryStore()
    for name, content in files.items():
        if name != path:
            other.put(name, content)
        elif kind != "gone":
            other.put(name, bytes(raw))
    return other, path, at, kind


def shard_of(path):
    return int(path.split(".")[1])


@many
@given(dataset=datasets(hashes=digested), data=st.data())
def test_with_digests_a_damaged_byte_of_a_shard_is_an_error_of_that_shard_alone(dataset, data):
    store, expected = write(dataset)
    found = reading(store, verify=True)
    shards = [number for number, length in enumerate(found.shard_lengths) if length]
    if not shards:
        reject()
    paths = [path for path in stored(store) if path != "index.json" and shard_of(path) in shards]
    other, path, *_ = damaged(data.draw, store, paths)
    bad = shard_of(path)
    ends = np.cumsum([0, *found.shard_lengths]).tolist()
    dataset = reading(other, verify=True)
    assert [(damage.shard, damage.file, damage.elements) for damage in dataset.verify()] == [
        (bad, path, (ends[bad], ends[bad + 1]))
    ]
    for number in range(len(expected)):
        inside = ends[bad] <= number < ends[bad + 1]
        for read in (lambda number=number: dataset[number], lambda number=number: dataset.__getitems__([number])[0]):
            sample, error = attempt(read)
            assert (error is not None) == inside
            assert error.shard == bad if inside else same(sample, expected[number])


@many
@given(dataset=datasets(hashes=digested), data=st.data())
def test_with_digests_a_damaged_byte_of_the_index_is_an_error_or_changes_no_sample(dataset, data):
    store, expected = write(dataset)
    other, *_ = damaged(data.draw, store, ["index.json"])
    try:
        found = reading(other, verify=True)[:]
    except HeadraceError:
        return
    assert_same(found, expected)


@many
@given(dataset=datasets(columns=SAFE_COLUMNS, hashes=no_digests, compression=st.none()), data=st.data())
def test_without_digests_a_damaged_byte_spoils_at_most_the_sample_that_it_is_in(dataset, data):
    store, expected = write(dataset)
    found = reading(store)
    lengths = found.lengths
    paths = [path for path in stored(store) if path != "index.json" and found.shard_lengths[shard_of(path)]]
    if not paths:
        reject()
    other, path, at, kind = damaged(data.draw, store, paths)
    bad = shard_of(path)
    first = int(found.shard_lengths[:bad].sum())
    numbers = range(first, first + int(found.shard_lengths[bad]))
    ends = index_of(store)[bad]["raw_data"]["bytes"] - lengths[numbers.start : numbers.stop][::-1].cumsum()[::-1]
    within = [number for number, begin in zip(numbers, ends, strict=True) if begin <= at < begin + lengths[number]]
    allowed = within if kind == "flipped" and not path.endswith(".meta") else []
    dataset = reading(other)
    raised = []
    for number, sample in enumerate(expected):
        one, error = attempt(lambda number=number: dataset[number])
        if error is not None:
            assert (error.shard, number in numbers) == (bad, True)
            raised.append(number)
            continue
        assert set(one) == set(sample)
        assert number in allowed or same(one, sample), f"{one} for {sample}"  # images are decoded as they are compared
    assert kind == "flipped" or raised == list(numbers)
    assert bool(dataset.verify()) >= bool(raised)


@many
@given(dataset=datasets(columns=SAFE_COLUMNS, hashes=no_digests), data=st.data())
def test_whatever_is_damaged_nothing_but_our_errors_and_whole_samples_come_out(dataset, data):
    store, expected = write(dataset)
    other, path, *_ = damaged(data.draw, store, stored(store))
    columns = set(dataset[1]["columns"])
    try:
        found = reading(other)
        len(found)
        for number in range(len(found)):
            try:
                sample = found[number]
            except HeadraceError:
                continue
            assert path == "index.json" or (set(sample) == columns and len(found) == len(expected))
        found.verify()
        found.lengths
    except HeadraceError:
        pass


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-3, 3) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


def places_in(value, place=()):
    """The place of everything inside, as keys from the outside in."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*place, key)
        yield from places_in(item, (*place, key))


@many
@given(dataset=datasets(columns=SAFE_COLUMNS), data=st.data())
def test_any_other_index_is_read_or_refused_with_our_errors(dataset, data):
    store, _ = write(dataset)
    index = json.loads(store.get("index.json"))
    for _ in range(data.draw(st.integers(1, 3))):
        *outer, last = data.draw(st.sampled_from(list(places_in(index)) or [("version",)]))
        inside = index
        for key in outer:
            inside = inside[key]
        match data.draw(st.sampled_from(["replaced", "replaced", "removed", "repeated", "renamed"])):
            case "replaced":
                inside[last] = data.draw(json_values)
            case "removed":
                inside.pop(last, None) if isinstance(inside, dict) else inside.pop(last)
            case "repeated" if isinstance(inside, list):
                inside.append(inside[last])
            case _ if isinstance(inside, dict):
                inside[data.draw(st.text(max_size=3))] = inside.pop(last, None)
    store.put("index.json", json.dumps(index).encode())
    for verify in (False, True):
        try:
            found = reading(store, verify=verify)
            for number in range(min(len(found), 20)):
                found[number]
            found.verify()
        except HeadraceError as error:
            event(type(error).__name__)


@many
@given(dataset=datasets(), data=st.data())
def test_resumed_after_any_number_of_whole_shards_the_bytes_are_those_of_one_go(dataset, data):
    store = MemoryStore()
    with opened(store, dataset) as writer:
        taken = fill(writer, dataset)
    shards = index_of(store)
    stop = data.draw(st.integers(0, len(shards)))  # the receipt that cannot be written
    part = MemoryStore()
    broken = FaultStore(part, [Rule(Refuse(StoreError("no more")), "put", f".headrace/samples/shard.{stop:05d}")])
    try:
        with opened(broken, dataset, retry=0) as writer:
            fill(writer, dataset)
        assert stop == len(shards)
    except WriteError:
        assert stop < len(shards)
        assert "index.json" not in stored(part)
    with opened(part, dataset, resume=True) as writer:
        safe = writer.num_safe_samples
        assert safe == sum(entry["samples"] for entry in shards[:stop])
        assert [*taken[:safe], *fill(writer, dataset, taken[safe] if safe < len(taken) else len(dataset[2]))] == taken
    assert stored(part) == stored(store)
