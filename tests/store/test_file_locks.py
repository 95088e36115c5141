import errno
import fcntl
import gc
import os
import shutil
import threading

import pytest

from headrace.errors import StoreError
from headrace.store.file_locks import LockTable, lock_table


@pytest.fixture(
    params=["of open files", "of files that are not kept open", "of processes", "of processes with too many files"]
)
def kind(request, monkeypatch):
    if request.param in ("of files that are not kept open", "of processes with too many files"):
        monkeypatch.setattr("headrace.store.file_locks.descriptors_together", lambda: 0)
    if request.param.startswith("of processes"):
        real = fcntl.fcntl

        def older(descriptor, command, argument):
            if command != fcntl.F_SETLK:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            return real(descriptor, command, argument)

        monkeypatch.setattr("headrace.store.file_locks.fcntl.fcntl", older)
    return request.param


def in_child(function):
    """What the function returns, a small number, in a forked child."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(int(function()))
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_name_is_shared_by_many_or_held_by_one_across_processes(tmp_path, kind):
    table = LockTable(tmp_path / "locks")
    assert table.share("a")
    assert in_child(lambda: (table.share("a"), table.take("a"), table.take("b")) == (True, False, True)) == 1
    assert not table.take("a")
    table.drop("a", os.getpid())
    assert table.take("a")
    assert in_child(lambda: (table.share("a"), table.take("a"), table.take("b")) == (False, False, True)) == 1
    table.give_back("a")
    assert in_child(lambda: table.take("a")) == 1


def test_a_shared_name_is_held_until_it_was_dropped_as_often(tmp_path, kind):
    table = LockTable(tmp_path)
    for _ in range(3):
        assert table.share("a")
    for _ in range(3):
        assert not table.is_free("a")
        assert in_child(lambda: table.is_free("a")) == 0
        table.drop("a", os.getpid())
    assert table.is_free("a")
    assert in_child(lambda: table.is_free("a")) == 1


def test_locks_end_with_their_process_and_not_with_its_children(tmp_path, kind):
    table = LockTable(tmp_path)
    gate, hold = os.pipe()
    ready, told = os.pipe()

    def holder():
        table.take("a")
        if os.fork() == 0:
            os.close(hold)  # so that it ends with the test, whatever comes
            os.write(told, b"x")
            os.read(gate, 1)  # lives on
            os._exit(0)
        return 0

    assert in_child(holder) == 0
    os.read(ready, 1)
    assert table.take("a")
    os.write(hold, b"x")


def test_tables_in_one_process_exclude_each_other(tmp_path):
    one, two = LockTable(tmp_path), LockTable(tmp_path)
    assert one.take("a")
    assert not two.share("a")
    two.close()
    assert not two.take("a")
    one.close()  # nothing happens, since something is held
    assert not two.take("a")
    one.give_back("a")
    assert two.take("a")


def test_ten_thousand_names_take_sixteen_files(tmp_path):
    table = LockTable(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    assert all(table.share(f"name {number}") for number in range(10_000))
    assert len(os.listdir("/proc/self/fd")) - before == 16
    assert table.num_held == 10_000


def test_tables_of_hundreds_of_folders_keep_few_files_open(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.store.file_locks.descriptors_together", lambda: 256)
    gc.collect()
    tables = [LockTable(tmp_path / str(number)) for number in range(200)]
    before = len(os.listdir("/proc/self/fd"))
    for table in tables:
        assert all(table.share(f"name {number}") for number in range(20))
        assert table.take("alone")
    assert in_child(lambda: LockTable(tmp_path / "7").take("alone")) == 0
    for table in tables:
        table.give_back("alone")
    assert len(os.listdir("/proc/self/fd")) - before <= 256
    for table in tables[::50]:
        assert in_child(lambda table=table: any(LockTable(table.folder).take(f"name {k}") for k in range(20))) == 0
        for number in range(20):
            table.drop(f"name {number}", os.getpid())
        assert in_child(lambda table=table: all(LockTable(table.folder).take(f"name {k}") for k in range(20))) == 1


def test_whoever_asks_for_the_table_of_a_folder_gets_the_same(tmp_path):
    table = lock_table(tmp_path)
    assert lock_table(tmp_path) is table
    assert lock_table(tmp_path / "other") is not table


def test_a_finalizer_may_drop_while_the_table_is_busy(tmp_path):
    table = LockTable(tmp_path)
    assert table.share("a")
    with table._locked():
        table.drop("a", os.getpid())  # as the garbage collector would, right here
        assert table.num_held == 1
    assert table.num_held == 0
    assert table.is_free("a")


def test_threads_take_turns(tmp_path):
    table, inside, most = LockTable(tmp_path), [], []

    def work():
        for _ in range(200):
            if table.take("a"):
                inside.append(1)
                most.append(len(inside))
                inside.pop()
                table.give_back("a")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert max(most) == 1


@pytest.mark.parametrize("acquire", [LockTable.take, LockTable.share])
def test_after_the_lock_files_were_deleted_a_renewed_table_meets_the_others_again(tmp_path, kind, acquire):
    table = LockTable(tmp_path)
    assert acquire(table, "a")
    for path in tmp_path.iterdir():
        path.unlink()
    assert in_child(lambda: table.take("a")) == 1
    table.renew()
    assert acquire(table, "a")
    assert in_child(lambda: table.take("a")) == 0
    table.renew()  # which lets go of nothing that others see
    assert in_child(lambda: table.take("a")) == 0


def test_a_folder_that_cannot_be_made_shares_every_name_and_gives_none_away(tmp_path, monkeypatch):
    real = os.open

    def read_only(path, flags, mode=0o777):
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, mode)

    monkeypatch.setattr("os.open", read_only)
    table = LockTable(tmp_path / "locks")
    assert table.share("a")
    assert not table.take("b")
    assert table.read_only


def test_no_locks_at_all_is_an_error_that_says_where(tmp_path, monkeypatch):
    def none(descriptor, command, argument):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr("headrace.store.file_locks.fcntl.fcntl", none)
    with pytest.raises(StoreError, match=f"{tmp_path}: this file system has no locks"):
        LockTable(tmp_path).take("a")


def test_a_table_that_is_dropped_closes_its_files(tmp_path):
    def is_open():
        links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        return any(os.path.exists(link) and os.readlink(link).startswith(str(tmp_path)) for link in links)

    table = LockTable(tmp_path)
    table.share("a")
    assert is_open()
    del table
    gc.collect()
    assert not is_open()


def test_a_name_is_taken_where_others_see_it_also_after_the_folder_was_removed(tmp_path, kind):
    def others_take(names):
        table = LockTable(tmp_path / "locks")
        return [table.take(name) for name in names]

    table = LockTable(tmp_path / "locks")
    assert table.take("before")
    table.give_back("before")
    shutil.rmtree(tmp_path / "locks")
    first, second = (list(map(str, range(begin, begin + 64))) for begin in (0, 64))  # of all lock files
    assert all(table.take(name) for name in first)
    assert in_child(lambda: any(others_take(first))) == 0
    assert table.num_held == 64
    os.rename(tmp_path / "locks", tmp_path / "aside")
    assert not table.take("0")  # this process itself has it
    assert all(table.take(name) for name in second)
    assert in_child(lambda: any(others_take(second))) == 0
    assert table.num_held == 64  # nobody sees the others any more
