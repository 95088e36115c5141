"""Streaming's options: which values there are, what they mean here, and how anything else is refused."""

import logging
import math
import pickle
from pathlib import Path

import numpy as np
import pytest

from headrace import MemoryStore, StreamingDataset
from headrace.errors import OptionError
from headrace.streaming.options import Settings, number_abbrev_to_int, size_in_bytes
from headrace.streaming.stream import Stream


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (5, 5),
        (0, 0),
        (np.int64(7), 7),
        ("100", 100),
        ("100k", 100_000),
        ("64M", 64_000_000),
        (" 1.5 b ", 1_500_000_000),
        ("2T", 2 * 10**12),
        (".5k", 500),
        ("0.29k", 290),
        ("9007199254740993", 9007199254740993),  # more digits than a float has
    ],
)
def test_numbers_may_be_written_with_thousands(given, expected):
    assert number_abbrev_to_int(given) == expected
    assert type(number_abbrev_to_int(given)) is int


@pytest.mark.parametrize("given", ["", "ten", "-1", "1.2345k", "1.5", "64MB", "1e3", "1_000", "0x10", "k", "nan", "٣"])
def test_a_text_that_is_no_whole_number_is_refused_with_the_forms_that_are(given):
    with pytest.raises(OptionError, match=r"'100k', '64M', '1\.5b'") as raised:
        Settings(epoch_size=given)
    assert raised.value.option == "epoch_size"


@pytest.mark.parametrize("given", [True, 1.0, None, b"64M"])
def test_what_is_neither_number_nor_text_is_another_type(given):
    with pytest.raises(TypeError):
        number_abbrev_to_int(given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        (0, 0),
        (1048576, 1 << 20),
        ("1mb", 1 << 20),
        ("1MiB", 1 << 20),
        ("64gb", 64 << 30),
        ("1.5 TB", 3 << 39),
        ("100b", 100),
        ("100", 100),
    ],
)
def test_limits_are_bytes_by_1024(given, expected):
    assert size_in_bytes(given) == expected
    assert Settings(cache_limit=given).cache_limit == expected


@pytest.mark.parametrize("given", ["-1", "ten", -1, "1 parsec", True, math.nan, "", "1e9"])
def test_what_is_no_limit_is_refused_with_the_forms_that_are(given):
    with pytest.raises(OptionError, match=r"'500mb', '20GiB' or '1\.5 TB'") as raised:
        Settings(cache_limit=given)
    assert raised.value.option == "cache_limit"


def test_the_defaults_are_those_of_streaming():
    settings = Settings()
    assert (settings.shuffle, settings.shuffle_algo, settings.shuffle_seed) == (False, "py1e", 9176)
    assert (settings.sampling_method, settings.sampling_granularity) == ("balanced", 1)
    assert (settings.batching_method, settings.partition_algo, settings.allow_unsafe_types) == (
        "random",
        "relaxed",
        False,
    )
    absent = ("epoch_size", "predownload", "cache_limit", "num_canonical_nodes", "batch_size", "shuffle_block_size")
    assert [getattr(settings, name) for name in (*absent, "replication")] == [None] * 7


@pytest.mark.parametrize(
    ("algorithm", "scope"),
    [(name, "pooled") for name in ("pooled", "py1e", "py1b", "py1br", "py1s", "py2s")]
    + [("global", "global"), ("naive", "global")],
)
def test_each_shuffle_algorithm_is_the_nearest_of_ours(algorithm, scope):
    assert Settings(shuffle=True, shuffle_algo=algorithm).scope == scope


@pytest.mark.parametrize(
    ("nodes", "block", "lanes", "pool_items"),
    [
        (None, None, 1, 4_000_000),
        (1, None, 1, 4_000_000),
        (8, None, 8, 500_000),
        (64, None, 64, 1 << 18),
        (2, 1000, 2, 1000),
        (None, 1, 1, 1),
    ],
)
def test_canonical_nodes_are_lanes_and_a_block_is_a_pool(nodes, block, lanes, pool_items):
    settings = Settings(num_canonical_nodes=nodes, shuffle_block_size=block)
    assert (settings.lanes, settings.pool_items) == (lanes, pool_items)


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("shuffle_algo", "py3", ["'pooled'", "'global'", "'py1e'", "'py1br'", "'naive'"]),
        ("sampling_method", "random", ["'balanced'", "'fixed'"]),
        ("partition_algo", "strict", ["'relaxed'", "'orig'"]),
        ("batching_method", "balanced", ["'random'", "'stratified'", "'per_stream'", "'device_per_stream'"]),
        ("epoch_size", 0, ["1"]),
        ("epoch_size", -5, ["1"]),
        ("predownload", -1, ["0"]),
        ("num_canonical_nodes", 0, ["1"]),
        ("batch_size", 0, ["1"]),
        ("shuffle_block_size", 0, ["1"]),
        ("shuffle_seed", -1, ["0"]),
        ("sampling_granularity", 0, ["1"]),
        ("replication", 0, ["1"]),
        ("stream_name", "my_stream", ["Stream"]),
        ("stream_config", {"choose": 3}, ["Stream"]),
        ("stream_config", 3, ["Stream"]),
    ],
)
def test_a_value_that_means_nothing_is_refused_with_those_that_do(option, value, named):
    with pytest.raises(OptionError) as raised:
        Settings(**{option: value})
    assert (raised.value.option, raised.value.value) == (option, value)
    assert [name for name in named if name not in raised.value.expected] == []


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("shuffle", "yes"),
        ("shuffle", 1),
        ("allow_unsafe_types", None),
        ("shuffle_seed", None),
        ("shuffle_seed", 1.0),
        ("batch_size", "8"),
        ("batch_size", True),
        ("predownload", 1.5),
        ("sampling_granularity", None),
        ("shuffle_algo", None),
        ("batching_method", 3),
        ("epoch_size", 1.5),
    ],
)
def test_a_value_of_another_type_is_a_type_error_that_names_the_option(option, value):
    with pytest.raises(TypeError, match=option):
        Settings(**{option: value})


@pytest.mark.parametrize("method", ["stratified", "per_stream", "device_per_stream"])
def test_what_fills_batches_needs_their_size(method):
    with pytest.raises(OptionError, match=method) as raised:
        Settings(batching_method=method)
    assert raised.value.option == "batch_size"
    assert Settings(batching_method=method, batch_size=4).batching_method == method


def test_zeros_that_mean_something_are_taken():
    settings = Settings(predownload=0, cache_limit=0, shuffle_seed=0)
    assert (settings.predownload, settings.cache_limit, settings.shuffle_seed) == (0, 0, 0)


def test_what_differs_is_said_once_a_process_and_value(caplog):
    from headrace.streaming import options

    options._say.cache_clear()
    with caplog.at_level(logging.INFO, "headrace"):
        Settings()
        Settings(shuffle=True, shuffle_algo="pooled")
        Settings(shuffle_algo="naive")  # nothing is shuffled
        assert caplog.messages == []
        for _ in range(3):
            Settings(shuffle=True)
            Settings(shuffle=True, shuffle_algo="naive")
            Settings(partition_algo="orig")
    assert [message.partition("=")[0] for message in caplog.messages] == [
        "shuffle_algo",
        "shuffle_algo",
        "partition_algo",
    ]
    assert "'pooled'" in caplog.messages[0]
    assert "'global'" in caplog.messages[1]


def test_settings_pickle_and_cannot_be_changed():
    settings = Settings(epoch_size="1k", shuffle=np.True_, batch_size=np.int32(4))
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert (settings.epoch_size, settings.shuffle, type(settings.batch_size)) == (1000, True, int)
    with pytest.raises(AttributeError):
        settings.batch_size = 5


def test_an_option_that_there_is_not_is_a_type_error():
    with pytest.raises(TypeError, match="shuffle_sed"):
        Settings(shuffle_sed=3)


def test_a_stream_has_streamings_attributes():
    stream = Stream(remote="s3://bucket/data", local="/tmp/cache", split="train", proportion=0.5, keep_zip=True)
    assert (stream.remote, stream.local, stream.split) == ("s3://bucket/data", "/tmp/cache", "train")
    assert (stream.proportion, stream.repeat, stream.choose) == (0.5, None, None)
    assert (stream.download_retry, stream.download_timeout, stream.validate_hash) == (None, None, None)
    assert stream.keep_zip is True
    assert stream.portion.proportion == 0.5


@pytest.mark.parametrize(
    "portion",
    [
        {"proportion": 1, "repeat": 2},
        {"repeat": 1.0, "choose": 3},
        {"proportion": -0.5},
        {"proportion": math.nan},
        {"repeat": math.inf},
        {"repeat": -1},
        {"choose": -1},
    ],
)
def test_a_portion_that_means_nothing_is_refused_at_once(portion):
    with pytest.raises(OptionError):
        Stream(local="/data", **portion)


def test_defaults_fill_gaps_and_nothing_else():
    stream = Stream(local="/data", choose=5, download_retry=0, validate_hash="sha1", split="")
    filled = stream.with_defaults(
        split="train", download_retry=2, download_timeout=60, validate_hash="md5", keep_zip=False
    )
    assert (filled.split, filled.download_retry, filled.validate_hash) == ("", 0, "sha1")
    assert (filled.download_timeout, filled.keep_zip, filled.choose, filled.local) == (60.0, False, 5, "/data")
    assert (stream.download_timeout, stream.keep_zip) == (None, None)
    assert filled is not stream


def test_defaults_are_checked_and_keep_the_class():
    class Mine(Stream):
        extra = 3

    stream = Mine(local="/data")
    stream.extra = 4
    filled = stream.with_defaults(split="val/")
    assert (type(filled), filled.extra, filled.split) == (Mine, 4, "val")
    with pytest.raises(OptionError):
        stream.with_defaults(download_retry=-1)


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({}, "local"),
        ({"remote": "", "local": ""}, "local"),
        ({"remote": "/data", "local": "s3://bucket/cache"}, "local"),
        ({"local": Path("s3://bucket/cache")}, "local"),
        ({"local": "/data", "split": "../other"}, "split"),
        ({"local": "/data", "split": "/other"}, "split"),
        ({"local": "/data", "split": "a//b"}, "split"),
        ({"local": "/data", "download_retry": -1}, "download_retry"),
        ({"local": "/data", "download_timeout": 0}, "download_timeout"),
        ({"local": "/data", "download_timeout": math.nan}, "download_timeout"),
    ],
)
def test_a_stream_that_makes_no_sense_is_refused_at_once(given, option):
    with pytest.raises(OptionError) as raised:
        Stream(**given)
    assert raised.value.option == option


@pytest.mark.parametrize(
    "given",
    [
        {"remote": 3},
        {"local": 3},
        {"local": MemoryStore()},
        {"local": "/data", "split": 3},
        {"local": "/data", "download_retry": "2"},
        {"local": "/data", "download_timeout": "60"},
        {"local": "/data", "validate_hash": ["sha1"]},
        {"local": "/data", "keep_zip": "no"},
        {"local": "/data", "choose": 1.5},
    ],
)
def test_a_streams_argument_of_another_type_is_a_type_error(given):
    with pytest.raises(TypeError):
        Stream(**given)


@pytest.mark.parametrize(
    ("remote", "shown"),
    [
        ("https://user:geheim@host/data?sig=geheim", "https://host/data"),
        ("https://geheim@host:8080/data", "https://host:8080/data"),
        ("https://user:ge/heim@host/data", "https://host/data"),
        ("s3://key:geheim@bucket/data", "s3://bucket/data"),
        ("abfs://container@account.dfs.core.windows.net/data", "abfs://container@account.dfs.core.windows.net/data"),
        ("https://host:8080/a@b", "https://host:8080/a@b"),
        ("/data/a?b@c:d", "/data/a?b@c:d"),
    ],
)
def test_a_stream_shows_no_secrets(remote, shown):
    stream = Stream(remote=remote, split="train", repeat=2)
    assert stream.name == f"{shown}/train"
    assert repr(stream) == f"Stream(remote={shown!r}, split='train', repeat=2)"


@pytest.mark.parametrize("url", ["https://user:geheim@host/data", "s3://bucket/data?sig=geheim"])
def test_no_refusal_of_a_url_in_the_wrong_place_shows_secrets(url):
    streams = [Stream(local="/data")]
    for given in (
        {"streams": streams, "remote": url},
        {"streams": streams, "local": url},
        {"streams": [url]},
        {"streams": url},
        {"local": url},
        {"local": "/data", "split": url},
    ):
        with pytest.raises((OptionError, TypeError)) as raised:
            StreamingDataset(**given)
        assert "geheim" not in f"{raised.value}{raised.value!r}{vars(raised.value)}"


def test_a_stream_pickles():
    for remote in ("s3://bucket/data", Path("/data"), MemoryStore(flat=True)):
        stream = Stream(remote=remote, local="/cache", choose=7, download_retry=1)
        assert repr(pickle.loads(pickle.dumps(stream))) == repr(stream)
