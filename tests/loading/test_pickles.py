"""What goes to another process arrives there as the same, whatever it was used for here."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from headrace import ElasticBatchSampler, ShuffledDataset, StatefulDataLoader, StreamNumpyFormat, StreamStorage, stack

SCRIPT = """
import pickle, sys
from pathlib import Path
objects = pickle.loads(Path(sys.argv[1]).read_bytes())
answers = [
    list(objects["sampler"]),
    [batch["tokens"].tolist() for batch in objects["loader"]],
    [sample["tokens"].tolist() for sample in objects["view"].__getitems__(range(30))],
    [sample["tokens"].tolist() for sample in objects["dataset"][:]],
    repr(objects["collate"](objects["dataset"][0:2])),
    objects["storage"].verify(),
    objects["loader"].state_dict(),
]
print(repr(answers[:-2] + answers[-1:]))
"""


def answers(objects):
    """What SCRIPT prints, here."""
    return repr(
        [
            list(objects["sampler"]),
            [batch["tokens"].tolist() for batch in objects["loader"]],
            [sample["tokens"].tolist() for sample in objects["view"].__getitems__(range(30))],
            [sample["tokens"].tolist() for sample in objects["dataset"][:]],
            repr(objects["collate"](objects["dataset"][0:2])),
            objects["loader"].state_dict(),
        ]
    )


def make_objects(folder):
    storage = StreamStorage(folder, StreamNumpyFormat([("tokens", "<u2")]))
    with storage.sync_writer() as writer:
        writer.append(0, {"tokens": np.arange(100)})
        writer.append(1, {"tokens": np.arange(60)})
    dataset = storage.dataset(8)
    options = {"rank": 1, "world_size": 2, "shuffle": True}
    return {
        "storage": storage,
        "dataset": dataset,
        "view": ShuffledDataset(dataset, 3),
        "collate": stack(dtype={"tokens": torch.int64}),
        "sampler": ElasticBatchSampler(dataset, 4, **options),
        "loader": StatefulDataLoader(
            dataset, local_batch_size=2, device="cpu", num_workers=2, prefetch=3, timeout_s=30, **options
        ),
    }


@pytest.mark.parametrize("used", [False, True])
def test_every_public_object_of_reading_gives_the_same_in_a_fresh_interpreter(tmp_path, used):
    objects = make_objects(tmp_path / "tokens")
    if used:
        answers(objects)
        next(iter(objects["loader"]))
    file = tmp_path / "objects.pickle"
    file.write_bytes(pickle.dumps(objects))
    ran = subprocess.run([sys.executable, "-c", SCRIPT, str(file)], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    objects["loader"].load_state_dict(objects["loader"].state_dict())  # so that it goes on here as it does there
    assert ran.stdout.strip() == answers(objects)
    objects["loader"].close()
