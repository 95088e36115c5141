"""What a store keeps instead of what it was given, as long as that, is found by its own digest, and put again."""

import base64
import hmac
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

import numpy as np
import pytest

from flat_stores import FlatFolder, Stream, write
from headrace.datasets import MDSWriter, SampleDataset
from headrace.datasets.copying import copy_dataset, transfer
from headrace.datasets.samples import delivery, pending, sample_writer
from headrace.errors import OutputError, StoreError, WriteError
from headrace.store import MemoryStore
from headrace.store.objects import ObjectStore
from headrace.store.open import open_store
from headrace.store.retrying import RetryPolicy
from headrace.testing import FaultStore, Flip, Rule
from servers import faulty_http
from servers.faulty_http import FlipSent, HttpServer

QUICK = RetryPolicy(tries=3, first_wait_s=0.02, total_s=30)
LONG = 10_000  # what is shorter are notes, receipts and the like
NUMBERS = np.arange(20_000, dtype=np.uint16)
OTHER_BYTES = r"other bytes \(with the md5 digest [0-9a-f]{32} instead of [0-9a-f]{32}\)"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(delivery, "_FIRST_WAIT_S", 0.001)


class Faulty:
    """A store, and how to make it keep other bytes of what is long."""

    def __init__(self, store, damage):
        self.store, self.damage = store, damage


@pytest.fixture(params=["memory", *(pytest.param(kind, marks=pytest.mark.servers) for kind in ("azure", "gcs"))])
def faulty(request):
    if request.param == "memory":
        store = FaultStore(MemoryStore(flat=True))

        def damage(times=None):
            store.rules[:] = [
                Rule(Flip(-200), operation, path, times=times)
                for operation in ("put", "upload")
                for path in ("*.in_band.bin", "shard.*.mds*")
            ]

        yield Faulty(store, damage)
        return
    url, options = (request.getfixturevalue(f"{request.param}_{name}") for name in ("url", "options"))
    name = "endpoint_url" if request.param == "gcs" else "endpoint"
    base, account = options[name].removesuffix("/devstoreaccount1"), "/devstoreaccount1" * (request.param == "azure")
    method = "POST" if request.param == "gcs" else "PUT"
    with HttpServer(base) as proxy:

        def damage(times=None):
            proxy.rules[:] = [faulty_http.Rule(FlipSent(-200), method=method, times=times, sent_bytes=LONG)]

        yield Faulty(open_store(url, retry=QUICK, **options | {name: proxy.url + account}), damage)


def test_a_shard_of_which_other_bytes_were_kept_goes_up_again(faulty):
    faulty.damage(times=1)
    stream = Stream(faulty.store)
    write(stream, [NUMBERS, NUMBERS[::-1]], publish=True)
    assert stream.storage.verify() == []
    assert stream.contents() == [*NUMBERS.tolist(), *NUMBERS[::-1].tolist()]


def test_a_store_that_always_keeps_other_bytes_is_an_error_with_both_digests(faulty):
    faulty.damage()
    stream = Stream(faulty.store)
    with pytest.raises(
        WriteError, match=rf"in_band.bin: the store acknowledged 40000 bytes and kept 40000 {OTHER_BYTES}"
    ):
        write(stream, [NUMBERS])
    assert not stream.storage.is_published()


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("spilled", [False, True])
def test_samples_of_which_other_bytes_were_kept_go_up_again_or_are_an_error(faulty, spilled, compression, monkeypatch):
    if spilled:
        for module in (pending, sample_writer):
            monkeypatch.setattr(module, "SPILL_BYTES", 1 << 14)
            monkeypatch.setattr(module, "GATHER_BYTES", 1 << 12)
    noise = np.random.default_rng(1)
    samples = [{"id": number, "data": noise.bytes(1000)} for number in range(30)]

    def write_samples(**options):
        with MDSWriter(
            columns={"id": "int", "data": "bytes"},
            out=faulty.store,
            compression=compression,
            size_limit=None,
            **options,
        ) as out:
            for one in samples:
                out.write(one)

    faulty.damage(times=1)
    write_samples(retry=2)
    with SampleDataset(faulty.store) as dataset:
        assert dataset[:] == samples
    faulty.damage()
    with pytest.raises(OutputError, match=rf"shard\.00000.*the store kept \d+ {OTHER_BYTES}.*\(3 tries\)"):
        write_samples(retry=2, exist_ok=True)


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_copy_of_which_other_bytes_were_kept_is_made_again_or_an_error(faulty, in_memory, monkeypatch):
    monkeypatch.setattr(transfer, "_IN_MEMORY_BYTES", 1 << 20 if in_memory else 0)
    source = Stream(MemoryStore())
    write(source, [NUMBERS], publish=True)
    faulty.damage()
    with pytest.raises(StoreError, match=rf"in_band\.bin: the store kept 40000 {OTHER_BYTES}"):
        copy_dataset(source.storage.store, faulty.store)
    faulty.damage(times=1)
    copy_dataset(source.storage.store, faulty.store)
    assert Stream(faulty.store).contents() == NUMBERS.tolist()


def test_a_store_without_digests_is_asked_for_sizes_alone(tmp_path):
    store = FlatFolder(tmp_path)
    write(Stream(FaultStore(store, [Rule(Flip(-200), "upload", "*.in_band.bin")])), [NUMBERS], publish=True)
    assert store.stored("headrace.json").md5 == ""
    assert len(Stream(store).storage.verify()) == 1  # found by the digests of the dataset


@pytest.mark.servers
def test_what_azure_tells_of_a_blob(azure_url, azure_options, tmp_path):
    """Of one in parts no digest, and none under a name that is quoted, or to who has a signature instead of a key."""
    store = open_store(azure_url, **azure_options, retry=QUICK)
    with (tmp_path / "file").open("wb") as file:
        file.truncate(65 << 20)
    store.upload("parts", tmp_path / "file")
    store.put("a=1/with blanks", b"data")
    for path in ("parts", "a=1/with blanks"):
        assert store.stored(path) == (store.head(path), "")
    for path in ("whole", "day=1/a+b,c@d~e"):
        store.put(path, b"data")
        assert len(store.stored(path).md5) == 32
    signed = signed_only(store.store)
    assert signed.head("whole") == store.head("whole")
    for _ in range(2):
        assert signed.stored("whole") == (store.head("whole"), "")


@pytest.mark.servers
def test_a_digest_that_cannot_be_asked_for_now_is_asked_for_again(azure_url, azure_options):
    account = "/devstoreaccount1"
    with HttpServer(azure_options["endpoint"].removesuffix(account)) as proxy:
        store = open_store(azure_url, **azure_options | {"endpoint": proxy.url + account}, retry=QUICK)
        store.put("object", b"data")
        proxy.rules[:] = [faulty_http.Rule(faulty_http.Status(503), method="HEAD", times=2)]
        assert len(store.stored("object").md5) == 32
        assert proxy.count("HEAD") == 3
        proxy.rules[:] = [faulty_http.Rule(faulty_http.Status(403), method="HEAD", query="*sig=*")]
        proxy.requests.clear()
        assert [store.stored("object").md5 for _ in range(3)] == [""] * 3
        assert proxy.count("HEAD") == 4  # it is not asked again by who was refused


def signed_only(store):
    """The same place for who has no key, but a signature that allows to read all of the container."""
    options, place = store.place.options, store.place
    begin, end = (datetime.now(UTC) + timedelta(minutes=shift) for shift in (-15, 15))
    fields = {"sp": "rl", "st": f"{begin:%FT%TZ}", "se": f"{end:%FT%TZ}", "sv": "2020-12-06", "sr": "c"}
    name = f"/blob/{options.credentials['account_name']}/{place.bucket}"
    lines = [fields["sp"], fields["st"], fields["se"], name, "", "", "", fields["sv"], fields["sr"], *[""] * 7]
    key = base64.b64decode(options.credentials["account_key"])
    fields["sig"] = base64.b64encode(hmac.digest(key, "\n".join(lines).encode(), "sha256")).decode()
    credentials = {"account_name": options.credentials["account_name"], "sas_key": urlencode(fields)}
    return ObjectStore(place.location, endpoint=options.endpoint, credentials=credentials, allow_http=True)
