import gc
import os

from cache_scenes import NAMES, bind, content, kept, remote_store
from cli.commands import headrace_here, one_error_line


def lines(done):
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def test_the_cache_is_shown_a_dataset_a_line_with_what_is_in_use(tmp_path):
    one, two = bind(remote_store(), tmp_path, "a" * 32), bind(remote_store(seed="x"), tmp_path, "b" * 32, seed="x")
    held = [one.view(name) for name in NAMES[:3]]
    two.view(NAMES[0])
    head, first, second, total = lines(headrace_here("cache", tmp_path))
    assert head == ["dataset", "files", "in", "use", "size", "last", "used"]
    assert first == ["memory://", "(bbbbbbbbbbbb)", "1", "0", "1.0", "kB", "just", "now"]
    assert second == ["memory://", "(aaaaaaaaaaaa)", "3", "3", "3.0", "kB", "just", "now"]
    assert total == ["total", "4", "3", "4.0", "kB"]
    assert [bytes(view) for view in held] == [content(name) for name in NAMES[:3]]


def test_it_is_trimmed_to_a_size_and_cleared_but_for_what_is_in_use(tmp_path):
    dataset = bind(remote_store(), tmp_path)
    held = dataset.view(NAMES[0])
    for name in NAMES:
        dataset.view(name)
    done = headrace_here("cache", tmp_path, "--limit", "4kb")
    assert done.stderr == "removed 6.0 kB\n"
    assert sorted(kept(tmp_path)) == [NAMES[0], *NAMES[7:]]
    done = headrace_here("cache", tmp_path, "--clear")
    assert "removed 3.0 kB\n" in done.stderr
    assert "readers use them" in done.stderr
    assert sorted(kept(tmp_path)) == [NAMES[0]]
    del held
    gc.collect()
    (tmp_path / "mine").write_text("mine")
    assert lines(headrace_here("cache", tmp_path, "--clear"))[1] == ["total", "0", "0", "0", "bytes"]
    assert kept(tmp_path) == {}
    assert os.listdir(tmp_path / "headrace-cache/1/files") == os.listdir(tmp_path / "headrace-cache/1/datasets") == []
    assert (tmp_path / "mine").exists()
    assert bytes(dataset.view(NAMES[1])) == content(NAMES[1])


def test_what_is_no_cache_and_no_size_is_refused(tmp_path):
    one_error_line(headrace_here("cache", tmp_path), str(tmp_path), "holds no cache")
    assert list(tmp_path.iterdir()) == []
    one_error_line(headrace_here("cache", "s3://bucket/cache"), "s3://bucket/cache", "is a URL")
    bind(remote_store(), tmp_path).view(NAMES[0])
    for options in (["--limit", "ten"], ["--limit", "-1"], ["--limit", "1mb", "--clear"]):
        done = headrace_here("cache", tmp_path, *options)
        assert done.returncode == 2
        assert len(kept(tmp_path)) == 1
