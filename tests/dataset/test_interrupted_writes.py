"""KeyboardInterrupt at every line of an append, caught by a user who goes on: what is committed is whole."""

import collections

import pytest

from dataset.scenes import DOCUMENTS, SPANS, leftovers
from headrace.datasets import attempts
from headrace.errors import ShardOwnedError, UnfinishedDatasetError, WriteError
from interference import interrupted


def outcome(kind, folder, nth, begun):
    """What became of shard 0, in which lies number 90; None when nth is past the end of the append."""
    kind.write(folder, [[90]])
    storage = kind.storage_at(folder)
    writer = storage.sync_writer()
    writer.open()
    for number in begun:
        writer.append(0, kind.record(number))
    if not interrupted(lambda: writer.append(0, kind.record(3)), nth):
        writer.close()
        assert kind.items_of(storage) == [kind.item(number) for number in (*begun, 3)]
        return None
    try:
        writer.append(0, kind.record(4))
    except WriteError as error:
        refused = type(error)
    else:
        refused = None
    try:
        writer.close()
    except WriteError:
        assert leftovers(folder) == []
        assert kind.items_of(storage) == [kind.item(90)]
        return "refused"
    try:
        items = kind.items_of(storage)
    except UnfinishedDatasetError:
        return "unfinished"
    assert refused is None
    assert items in ([kind.item(number) for number in (*begun, *more)] for more in ([4], [3, 4]))
    return "whole"


@pytest.mark.parametrize("kind", [DOCUMENTS, SPANS], ids=repr)
def test_an_interrupt_at_any_line_of_an_append_leaves_the_record_whole_or_out_or_the_shard_refused(
    kind, tmp_path, monkeypatch
):
    monkeypatch.setattr(attempts, "BUFFER_BYTES", 300)  # so that files are written to, and not only buffers
    seen = collections.Counter()
    for nth in range(1, 1000):
        result = outcome(kind, tmp_path / str(nth), nth, [1, 2])
        if result is None:
            break
        seen[result] += 1
    assert result is None
    assert set(seen) == {"whole", "refused"}
    assert min(seen.values()) > 5


@pytest.mark.parametrize("kind", [DOCUMENTS, SPANS], ids=repr)
def test_an_interrupt_as_a_shard_begins_never_commits_what_was_not_appended(kind, tmp_path, monkeypatch):
    """It may leave the shard to a process that lives, and then the directory unfinished until somebody takes it."""
    monkeypatch.setattr(attempts, "BUFFER_BYTES", 300)
    for nth in range(1, 4000, 11):
        folder = tmp_path / str(nth)
        try:
            result = outcome(kind, folder, nth, [])
        except ShardOwnedError:
            result = "unfinished"
        if result is None:
            break
    assert result is None
