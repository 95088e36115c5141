"""Writing records of 2,048 uint16 tokens, digests and receipts included, against GuideLoom.

    python -m benchmarks.writing [--check] [--records N] [--guideloom PYTHON]

Both write the same records to two shards of a fresh directory, one `append` a record, and close. With fsync off a crash
of the process loses nothing that was committed, a power cut may; with it on nothing does. GuideLoom has no fsync and
runs in its own interpreter; the sides take turns.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.measure import ROUNDS, WINDOW, Bound, conclude, describe_machine, make_tokens
from headrace import LocalStore, StreamArrayFormat, StreamStorage


def write(folder: Path, tokens: np.ndarray, *, fsync: bool) -> float:
    """Seconds to write the records, from the first append until the writer has closed."""
    storage = StreamStorage(LocalStore(folder, fsync=fsync), StreamArrayFormat("<u2"))
    begin = time.perf_counter()
    with storage.sync_writer() as writer:
        for number, record in enumerate(tokens):
            writer.append(number % 2, record)
    return time.perf_counter() - begin


class Guideloom:
    """GuideLoom's interpreter, kept running; each call writes once."""

    def __init__(self, python: str, source: Path) -> None:
        script = Path(__file__).parent / "guideloom_writes.py"
        self._process = subprocess.Popen(
            [python, str(script), str(source)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def write(self, folder: Path) -> float:
        """Seconds to write the records."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None, "both were asked for"
        assert stdout is not None, "both were asked for"
        stdin.write(f"{folder}\n")
        stdin.flush()
        return float(stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def main() -> int:
    """Measure and print; 1 when --check is given and a bound is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--records", type=int, default=25_000, help="of 2,048 tokens: 25,000 are 102 MB")
    parser.add_argument("--guideloom", metavar="PYTHON", help="an interpreter that has GuideLoom")
    options = parser.parse_args()
    print(describe_machine())
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        tokens = make_tokens(options.records).reshape(-1, WINDOW)
        source = root / "source.npy"
        np.save(source, tokens)
        theirs = Guideloom(options.guideloom, source) if options.guideloom else None
        seconds: dict[str, list[float]] = {"Headrace, fsync off": [], "Headrace, fsync on": [], "GuideLoom": []}
        for number in range(ROUNDS + 1):
            taken = {
                "Headrace, fsync off": write(root / "off", tokens, fsync=False),
                "Headrace, fsync on": write(root / "on", tokens, fsync=True),
            }
            if theirs is not None:
                taken["GuideLoom"] = theirs.write(root / "theirs")
                same = [(root / side / "0000001.in_band.bin").read_bytes() for side in ("off", "theirs")]
                assert same[0] == same[1], "the two libraries wrote different bytes"
            for name in ("off", "on", "theirs"):
                shutil.rmtree(root / name, ignore_errors=True)
            if number:
                for name, one in taken.items():
                    seconds[name].append(one)
        if theirs is not None:
            theirs.close()
    megabytes = tokens.nbytes / 1e6
    print(f"\n{options.records:,} records of {WINDOW} tokens, {megabytes:.0f} MB, two shards")
    for name, taken_s in seconds.items():
        if taken_s:
            low, high = min(taken_s), max(taken_s)
            rate = megabytes / statistics.median(taken_s)
            print(f"  {name:22} {rate:7.0f} MB/s ({megabytes / high:.0f} to {megabytes / low:.0f})")
    if not seconds["GuideLoom"]:
        print("\nGuideLoom is left out: no interpreter was given (--guideloom)")
        return 0
    bounds = []
    for name, least in (("Headrace, fsync off", 1.0), ("Headrace, fsync on", 0.5)):
        rates = [t / o for o, t in zip(seconds[name], seconds["GuideLoom"], strict=True)]
        bounds.append(Bound(f"{name}, times GuideLoom's speed", statistics.median(rates), least))
    return conclude(bounds, options.check)


if __name__ == "__main__":
    sys.exit(main())
