"""Runs in d9d's own interpreter, which has Headrace, too: makes packs with d9d's AutoDataProvider as each request on
standard input says, and answers with the seconds a pack that took.

    python d9d_packs.py FOLDER          with the datasets as pack_data.py writes them

A request is a line of JSON: dataset (one of pack_data.DATASETS), workers, and packs, how many are timed; 0 asks for the
epoch's totals instead.
"""

import importlib
import json
import pathlib
import sys
import warnings
from typing import Any

import torch

HERE = pathlib.Path(__file__).parents[1]


class Answers:
    """What it takes to answer a request."""

    def __init__(self, folder: pathlib.Path) -> None:
        sys.path += [str(HERE), str(HERE / "tests")]
        importlib.import_module("interop.d9d_on_cpu")  # d9d imports what is for GPUs
        self.auto: Any = importlib.import_module("d9d.loop.auto")
        self.control: Any = importlib.import_module("d9d.loop.control")
        self.data: Any = importlib.import_module("benchmarks.pack_data")
        self.folder = folder

    def stream(self, dataset: str, workers: int) -> Any:
        """d9d's stack over the dataset, shuffled."""
        opened, collate = self.data.DATASETS[dataset]
        config = self.auto.AutoDataConfig(
            global_batch_size=self.data.MICROBATCHES * self.data.ROWS,
            microbatch_size=self.data.ROWS,
            num_workers=workers,
            shuffle=True,
            pin_memory=False,
        )
        provider = self.auto.AutoDataProvider(lambda _: opened(self.folder), collate, config)
        return provider(self.control.InitializeDataProviderContext(dist_context=self.data.ALONE))

    def answer(self, dataset: str, workers: int, packs: int) -> Any:
        """Seconds a pack, or totals."""
        stream = self.stream(dataset, workers)
        return self.data.seconds_a_pack(stream, packs) if packs else self.data.totals(stream)


def main(folder: pathlib.Path) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torchdata calls what torch means to remove
    answers = Answers(folder)
    for line in sys.stdin:
        print(json.dumps(answers.answer(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
