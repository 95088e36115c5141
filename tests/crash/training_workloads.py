"""What is killed: a training job that saves every second of its six steps, and keeps the newest checkpoint only."""

import dataclasses
import json
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1]))

from headrace import JobLoggerConfig
from training import linear_job

STEPS = 6


class Job:
    """The golden trainer job, with its checkpoints in a directory and what it came to beside that."""

    @staticmethod
    def train(folder):
        """Train from the newest checkpoint to the end."""
        torch.set_num_threads(1)
        path = Path(folder)
        job, task = linear_job.configurator(path, total=STEPS, period=2, keep=1)
        unlogged = job.parameters.model_copy(update={"logging": JobLoggerConfig()})
        trainer = dataclasses.replace(job, parameters=unlogged).configure()
        begun = trainer.schedule.current_step
        trainer.train()
        weight = trainer.model.linear.weight.tolist()
        left = {"begun": begun, "seen": task.seen, "weight": weight}
        (path.parent / "result.json").write_text(json.dumps(left))


job = Job()
