"""Runs in GuideLoom's own interpreter: for each directory named on standard input, writes the records of the source
file there and prints the seconds that took.

    python guideloom_writes.py SOURCE.npy
"""

import pathlib
import sys
import time

import numpy as np
from guideloom import StreamStorage
from guideloom_reads import Plain


def main(source: str) -> None:
    tokens = np.load(source)
    for line in sys.stdin:
        storage = StreamStorage(pathlib.Path(line.strip()), Plain())
        begin = time.perf_counter()
        with storage.sync_writer() as writer:
            for number, record in enumerate(tokens):
                writer.append(number % 2, record)
        print(time.perf_counter() - begin, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
