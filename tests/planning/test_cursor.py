"""The cursor moves as the consumer gets rows, and its record is refused wherever it does not belong."""

import json
from collections import OrderedDict
from types import MappingProxyType

import numpy as np
import pytest

from headrace.errors import StateMismatchError
from headrace.planning import STATE_VERSION, Cursor, decode_state, encode_state, plan_fingerprint

SETTINGS = {"data": "9f2c", "sequence_length": 2048, "shuffle": "global", "seed": 7, "drop_last": True, "extra": None}


def test_the_cursor_counts_rows_and_the_end_of_an_epoch_is_the_start_of_the_next():
    full = {"num_rows": 10, "global_batch_size": 4}
    assert Cursor().advanced(4, drop_last=True, **full) == Cursor(0, 4)
    assert Cursor(0, 4).advanced(4, drop_last=True, **full) == Cursor(1, 0)  # rows 8 and 9 fill no batch
    assert Cursor(0, 4).advanced(4, drop_last=False, **full) == Cursor(0, 8)
    assert Cursor(0, 8).advanced(4, drop_last=False, **full) == Cursor(1, 0)  # a short last batch
    assert Cursor(5).advanced(8, drop_last=True, **full) == Cursor(6, 0)


def test_advancing_by_nothing_moves_only_a_cursor_that_has_no_batch_left():
    kept = {"num_rows": 100, "drop_last": True}
    assert Cursor(3, 96).advanced(0, global_batch_size=4, **kept) == Cursor(3, 96)
    assert Cursor(3, 96).advanced(0, global_batch_size=8, **kept) == Cursor(4, 0)
    assert Cursor(3).advanced(0, global_batch_size=8, **kept) == Cursor(3)


def test_a_cursor_cannot_be_changed():
    with pytest.raises(AttributeError):
        Cursor().position = 3


def test_a_record_goes_through_json_and_comes_back():
    cursor = Cursor(3, 4096, 61, 17)
    record = encode_state(cursor, SETTINGS)
    assert decode_state(json.loads(json.dumps(record)), SETTINGS) == cursor
    assert list(record) == ["version", "epoch", "position", "window", "row", "plan", "settings"]
    assert record["version"] == STATE_VERSION
    assert len(json.dumps(record)) < 4096


def test_a_record_is_json_also_when_the_cursor_was_made_of_numpy_integers():
    cursor = Cursor(np.int64(3), np.int64(8))
    assert json.loads(json.dumps(encode_state(cursor, SETTINGS)))["position"] == 8


def test_a_record_holds_its_own_copy_of_the_settings():
    settings = dict(SETTINGS)
    record = encode_state(Cursor(), settings)
    settings["seed"] = 8
    assert record["settings"]["seed"] == 7


def test_any_mapping_is_a_record():
    record = encode_state(Cursor(1, 2), SETTINGS)
    for mapping in (OrderedDict(reversed(record.items())), MappingProxyType(record)):
        assert decode_state(mapping, MappingProxyType(SETTINGS)) == Cursor(1, 2)


def test_the_order_of_settings_does_not_matter_and_anything_else_does():
    plan = plan_fingerprint(SETTINGS)
    assert plan_fingerprint(dict(reversed(SETTINGS.items()))) == plan
    others = [
        {**SETTINGS, "seed": 8},
        {**SETTINGS, "seed": "7"},
        {**SETTINGS, "seed": 7.0},
        {**SETTINGS, "drop_last": 1},
        {**SETTINGS, "more": None},
        {name: value for name, value in SETTINGS.items() if name != "extra"},
    ]
    assert len({plan, *map(plan_fingerprint, others)}) == 1 + len(others)


def test_a_plan_that_is_known_is_not_computed_again():
    assert encode_state(Cursor(), SETTINGS, "known")["plan"] == "known"


@pytest.mark.parametrize(
    ("current", "differences"),
    [
        ({**SETTINGS, "seed": 8}, {"seed": (7, 8)}),
        ({**SETTINGS, "data": "aaaa", "seed": 8}, {"data": ("9f2c", "aaaa"), "seed": (7, 8)}),
        ({**SETTINGS, "stride": 5}, {"stride": ("(absent)", 5)}),
        ({k: v for k, v in SETTINGS.items() if k != "shuffle"}, {"shuffle": ("global", "(absent)")}),
        ({k: v for k, v in SETTINGS.items() if k != "extra"}, {"extra": (None, "(absent)")}),
        ({**SETTINGS, "drop_last": 1}, {"drop_last": (True, 1)}),
    ],
)
def test_a_record_of_other_settings_is_refused_naming_every_field_that_differs(current, differences):
    record = json.loads(json.dumps(encode_state(Cursor(1, 2), SETTINGS)))
    with pytest.raises(StateMismatchError) as refused:
        decode_state(record, current)
    assert refused.value.differences == differences
    for name, (saved, now) in differences.items():
        assert f"{name}: saved {saved!r}, current {now!r}" in str(refused.value)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_a_record_of_another_version_is_refused(version):
    with pytest.raises(ValueError, match=f"has version {version!r}; this Headrace reads version 1"):
        decode_state({**encode_state(Cursor(), SETTINGS), "version": version}, SETTINGS)


@pytest.mark.parametrize("name", ["epoch", "position", "window", "row"])
@pytest.mark.parametrize("value", [-1, 1.0, "1", None, True, [1], 2**63])
def test_a_count_that_is_no_count_is_refused(name, value):
    with pytest.raises(ValueError, match=f"state's {name} is"):
        decode_state({**encode_state(Cursor(), SETTINGS), name: value}, SETTINGS)


@pytest.mark.parametrize("name", ["epoch", "position", "window", "row", "plan", "settings"])
def test_a_record_that_lacks_a_field_is_refused(name):
    record = encode_state(Cursor(), SETTINGS)
    del record[name]
    with pytest.raises(ValueError, match=f"lacks some: {name}"):
        decode_state(record, SETTINGS)


def test_a_record_with_a_field_of_a_later_time_is_refused():
    with pytest.raises(ValueError, match=r"unknown fields.*lane"):
        decode_state({**encode_state(Cursor(), SETTINGS), "lane": 3}, SETTINGS)


@pytest.mark.parametrize("damage", [{"plan": "0" * 32}, {"plan": None}, {"settings": {}}, {"settings": None}])
def test_a_record_whose_settings_do_not_give_its_plan_is_refused(damage):
    with pytest.raises(ValueError, match="damaged"):
        decode_state({**encode_state(Cursor(), SETTINGS), **damage}, SETTINGS)


def test_a_position_behind_the_epoch_s_end_is_refused_where_the_end_is_known():
    record = encode_state(Cursor(0, 101), SETTINGS)
    assert decode_state(record, SETTINGS) == Cursor(0, 101)
    with pytest.raises(ValueError, match="position is 101 in an epoch of 100 rows"):
        decode_state(record, SETTINGS, 100)


@pytest.mark.parametrize("record", [None, 3, "{}", [("version", 1)]])
def test_what_is_no_record_at_all_is_refused(record):
    with pytest.raises(ValueError, match="a loader state is a dict"):
        decode_state(record, SETTINGS)


def test_of_long_settings_that_differ_the_place_where_they_do_is_shown():
    text = "".join(f"{number}," for number in range(500))
    saved = encode_state(Cursor(), {"plan": text})
    with pytest.raises(StateMismatchError) as caught:
        decode_state(saved, {"plan": text.replace(",77,", ",many,")})
    assert ",76,77,78," in str(caught.value)
    assert ",76,many,78," in str(caught.value)
    assert len(str(caught.value)) < 400
    assert caught.value.differences["plan"][0] == text
