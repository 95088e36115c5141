"""The command, run as users run it: real processes, exit codes, and what lies on the disk behind them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from cli.commands import HEADRACE, TEXTS, headrace, one_error_line, reference
from headrace.datasets import StreamStorage, open_storage
from headrace.errors import UnfinishedDatasetError
from preparation.processes import alive, start_command, wait_for
from preparation.texts import sentences, write_jsonl, write_tiktoken_plugin
from preparation.work import data_of, files_of, leftovers, storage_at


def tokens(directory):
    with StreamStorage(directory).sync_reader() as reader:
        return reader.read(0, reader.total_length)["tokens"]


def test_tokenize_gives_the_plain_reference_stream_whatever_the_workers_and_shards(tmp_path, tokenizer, corpus):
    for name, options in (("one", ["--workers", 1]), ("two", ["--workers", 2]), ("five", ["--shards", 5])):
        done = headrace("tokenize", corpus, "--tokenizer", tokenizer, "--out", tmp_path / name, *options)
        assert (done.returncode, done.stderr) == (0, "")
        found = tokens(tmp_path / name)
        assert found.dtype == np.dtype("<u2")
        assert found.tolist() == reference(tokenizer, TEXTS)
        assert f"{len(found):,} tokens (uint16" in done.stdout
    assert data_of(tmp_path / "one") == data_of(tmp_path / "two")
    assert len(StreamStorage(tmp_path / "five").open().manifest.shards) == 5


def test_a_second_run_finds_everything_there_and_another_input_needs_overwrite(tmp_path, tokenizer, corpus):
    command = ["tokenize", corpus, "--tokenizer", tokenizer, "--out", tmp_path / "out", "--workers", 1]
    assert headrace(*command).returncode == 0
    before = files_of(tmp_path / "out")
    again = headrace(*command)
    assert again.returncode == 0
    assert "0 written" in again.stdout
    assert files_of(tmp_path / "out") == before

    other = [*command[:1], corpus / "a.jsonl", *command[2:]]
    one_error_line(headrace(*other), "is published")
    assert files_of(tmp_path / "out") == before
    assert headrace(*other, "--overwrite", "--shards", 2).returncode == 0
    assert tokens(tmp_path / "out").tolist() == reference(tokenizer, TEXTS[:200])
    assert len(data_of(tmp_path / "out")) == 3


def test_options_reach_the_tokens(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("one\n\ntwo\nthree\n")
    (tmp_path / "b.jsonl").write_text('{"body": "four"}\n')
    done = headrace(
        *["tokenize", tmp_path / "a.txt", tmp_path / "b.jsonl", "--tokenizer", tokenizer, "--out", tmp_path / "out"],
        *["--document", "line", "--field", "body", "--eos", 7, "--dtype", "int32", "--quiet"],
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    loaded = Tokenizer.from_file(str(tokenizer))
    found = tokens(tmp_path / "out")
    assert found.dtype == np.dtype("<i4")
    assert found.tolist() == [i for word in ("one", "two", "three", "four") for i in [*loaded.encode(word).ids, 7]]


def test_tokenize_takes_a_tiktoken_encoding(tmp_path, corpus):
    env = {**os.environ, "PYTHONPATH": str(write_tiktoken_plugin(tmp_path))}
    out = tmp_path / "out"
    for workers in (1, 2):
        done = headrace(
            *["tokenize", corpus / "a.jsonl", "--tokenizer", "tiny_bytes", "--out", out, "--workers", workers], env=env
        )
        assert (done.returncode, done.stderr) == (0, "")
    found = tokens(out).tolist()
    assert found.count(259) == 200
    first = bytes(b for i in found[: found.index(259)] for b in ({256: b"th", 257: b"the", 258: b" a"}.get(i) or [i]))
    assert first.decode() == TEXTS[0]


def test_failures_are_one_readable_line_and_publish_nothing(tmp_path, tokenizer, corpus):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "x"}\n{"texts": "y"}\n')
    for workers in (1, 2):
        out = tmp_path / f"out{workers}"
        finished = headrace("tokenize", corpus, bad, "--tokenizer", tokenizer, "--out", out, "--workers", workers)
        one_error_line(finished, f"{bad}, line 2", "no object with a string 'text'", "shard ")
        assert not (out / "headrace.json").exists()
        assert not leftovers(out)
    out = tmp_path / "out"
    common = ["--tokenizer", tokenizer, "--out", out]
    one_error_line(headrace("tokenize", tmp_path / "missing.txt", *common), "missing.txt", "no such file")
    one_error_line(headrace("tokenize", corpus, "--tokenizer", "gpt17", "--out", out), "gpt17", "tiktoken's encodings")
    one_error_line(headrace("tokenize", corpus, *common, "--eos", "<stop>"), "no token '<stop>'")
    one_error_line(
        headrace("tokenize", corpus, "--tokenizer", tokenizer, "--out", "nosuch://b/x", cwd=tmp_path), "nosuch"
    )
    empty = tmp_path / "empty.txt"
    empty.touch()
    one_error_line(headrace("tokenize", empty, *common), "1 input files", "0 bytes")
    blank = tmp_path / "blank.txt"
    blank.write_text("\n\n")
    for _ in range(2):
        one_error_line(headrace("tokenize", blank, *common, "--document", "line"), "0 records", "not published")
    assert not any(":" in name for name in os.listdir(tmp_path))


def test_an_unwritable_target_is_one_readable_line(tmp_path, tokenizer, corpus):
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "out"
    one_error_line(headrace("tokenize", corpus, "--tokenizer", tokenizer, "--out", out, "--workers", 1), "file")


@pytest.mark.parametrize(
    ("to_group", "layout"), [(True, []), (False, []), (True, ["--documents"]), (True, ["--spans"])]
)
def test_ctrl_c_leaves_a_resumable_directory_and_no_child(tmp_path, tokenizer, to_group, layout):
    write_jsonl(tmp_path / "a.jsonl", list(sentences(20_000)))
    out = tmp_path / "out"
    command = [*HEADRACE, "tokenize", str(tmp_path / "a.jsonl"), "--tokenizer", str(tokenizer), "--out", str(out)]
    command += ["--shards", "24", "--workers", "2", *layout]
    process = start_command(command)
    wait_for(lambda: len(list(out.glob(".headrace/*.receipt"))) >= 2, "finished shard")
    (os.killpg if to_group else os.kill)(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=15)
    assert process.returncode == 130
    assert output == ""
    assert errors == f"interrupted: {out} is unfinished; run the same command again to go on where it stopped\n"
    assert alive(process.pid) == []
    assert not leftovers(out)
    with pytest.raises(UnfinishedDatasetError):
        open_storage(out).open()
    finished = len(list(out.glob(".headrace/*.receipt")))
    assert 2 <= finished < 24

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert f"{24 - finished} written" in done.stdout
    assert f"{finished} were there already" in done.stdout
    whole = [str(tmp_path / "whole") if word == str(out) else word for word in command]
    subprocess.run(whole, capture_output=True, timeout=60, check=True)
    assert data_of(out) == data_of(tmp_path / "whole")


def test_the_progress_bar_shows_total_rate_and_time_left_on_a_terminal_only(tmp_path, tokenizer, corpus):
    common = ["tokenize", corpus, "--tokenizer", tokenizer, "--workers", 2, "--out"]
    assert headrace(*common, tmp_path / "quiet").stderr == ""
    forced = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": "100"}
    shown = headrace(*common, tmp_path / "shown", env=forced)
    assert shown.returncode == 0
    assert "shards" in shown.stderr
    assert "kB" in shown.stderr
    assert headrace(*common, tmp_path / "hushed", "--quiet", env=forced).stderr == ""


def test_inspect_says_what_is_there(tmp_path, tokenizer, corpus):
    out = tmp_path / "out"
    headrace("tokenize", corpus, "--tokenizer", tokenizer, "--out", out, "--shards", 12)
    told = json.loads(headrace("inspect", out, "--json").stdout)
    manifest = StreamStorage(out).open().manifest
    assert (told["kind"], told["dtype"], told["published"]) == ("stream", [["tokens", "<u2"]], True)
    assert told["fingerprint"] == manifest.fingerprint
    assert told["total_length"] == sum(shard["length"] for shard in told["shards"]) == len(tokens(out))
    assert told["shards"][3]["files"][0]["xxh3_128"] == manifest.shards[3].files[0].xxh3_128
    assert told["first"] == {"tokens": tokens(out)[:16].tolist()}
    shown = headrace("inspect", out)
    assert shown.returncode == 0
    for part in (manifest.fingerprint, "stream", "0000009.in_band.bin", "and 2 more shards"):
        assert part in shown.stdout
    assert "0000010.in_band.bin" not in shown.stdout


def test_inspect_reads_what_another_program_wrote(tmp_path):
    (tmp_path / "0000000.in_band.bin").write_bytes(bytes(20))
    told = json.loads(headrace("inspect", tmp_path, "--json").stdout)
    assert (told["total_length"], told["total_bytes"], told["first"]) == (None, 20, None)
    assert "digests" in told["unchecked"]
    assert headrace("inspect", tmp_path).returncode == 0


def test_verify_names_damaged_files_and_the_elements_they_hold(tmp_path, tokenizer, corpus):
    out = tmp_path / "out"
    headrace("tokenize", corpus, "--tokenizer", tokenizer, "--out", out, "--shards", 3)
    good = headrace("verify", out)
    assert (good.returncode, good.stderr) == (0, "")
    assert "no damage found" in good.stdout
    lengths = [shard.length for shard in StreamStorage(out).open().manifest.shards]
    data = bytearray((out / "0000001.in_band.bin").read_bytes())
    data[100] ^= 1
    (out / "0000001.in_band.bin").write_bytes(data)
    (out / "0000002.in_band.bin").unlink()
    bad = headrace("verify", out)
    assert bad.returncode == 1
    first, second = bad.stdout.splitlines()
    assert first.startswith("0000001.in_band.bin: ")
    assert f"elements {lengths[0]:,} to {lengths[0] + lengths[1]:,}" in first
    assert second.startswith("0000002.in_band.bin: is missing")
    assert "2 of 3 files are damaged" in bad.stderr


def test_publish_commits_what_is_whole_and_refuses_what_is_not(tmp_path, tokenizer):
    with storage_at(tmp_path / "whole").sync_writer() as writer:
        writer.append(0, {"tokens": np.arange(5)})
    first = headrace("publish", tmp_path / "whole")
    assert first.returncode == 0
    assert "1 shards, 5 elements" in first.stdout
    assert headrace("publish", tmp_path / "whole").stdout == first.stdout
    with storage_at(tmp_path / "gap").sync_writer() as writer:
        writer.append(1, {"tokens": np.arange(5)})
    one_error_line(headrace("publish", tmp_path / "gap"), "shards 0")
    one_error_line(headrace("publish", tmp_path / "nothing"), "nothing")
    one_error_line(headrace("inspect", tmp_path / "gap"), "unfinished")


@pytest.mark.parametrize("command", ["tokenize", "inspect", "verify", "publish"])
def test_help_teaches_with_an_example(command):
    told = headrace(command, "--help")
    assert told.returncode == 0
    assert f"Example: headrace {command}" in told.stdout


def test_a_wrong_command_line_ends_with_code_2_and_the_script_is_the_module(tmp_path):
    assert headrace("tokenize").returncode == 2
    assert headrace("conjure").returncode == 2
    script = Path(sys.executable).with_name("headrace")
    told = subprocess.run([script, "--help"], capture_output=True, text=True, check=True, timeout=60)
    assert "tokenize" in told.stdout


def test_the_command_starts_without_loading_what_it_does_not_need():
    code = (
        "import sys, headrace.cli; print([m for m in ('torch', 'numpy', 'tokenizers', 'tiktoken') if m in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout == "[]\n"
