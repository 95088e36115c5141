"""Jobs of several ranks, whose loaders run side by side: in this process, or as tasks in a process of their own.

A module that has run(**task), with a task and what it gives in JSON's terms, can be run by in_a_new_process().
"""

import importlib
import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

import torch

from loading.samples import together

TESTS = Path(__file__).parents[1]


class Job:
    """Loaders of all ranks, that begin where the state says; rows_of(batch) is a list of what a rank's batch has."""

    def __init__(self, loaders, rows_of=list, state=None):
        self.loaders, self._rows_of = loaders, rows_of
        for one in loaders:
            if state is not None:
                one.load_state_dict(state)
        self._endless = [self._on_and_on(one) for one in loaders]

    def epoch(self):
        """The global batches of the next epoch, or of the rest of this one; all ranks make equally many steps."""
        return together([[self._rows_of(batch) for batch in one] for one in self.loaders])

    def run(self, steps):
        """So many more global batches, however many epochs they are in."""
        return together([list(islice(one, steps)) for one in self._endless])

    def state(self):
        """The state, which every rank says alike."""
        states = [one.state_dict() for one in self.loaders]
        assert all(state == states[0] for state in states)
        return json.loads(json.dumps(states[0]))

    def close(self):
        for one in self.loaders:
            one.close()

    def _on_and_on(self, one):
        while True:
            batch = None
            for batch in one:
                yield self._rows_of(batch)
            assert batch is not None, "an epoch without a batch"


def run(job_of, *, steps=None, epochs=None, state_file=None, **task):
    """{batches, state} of so many steps or epochs of job_of(**task); state_file is one that torch.save wrote."""
    if state_file is not None:
        task["state"] = torch.load(state_file, weights_only=True)
    job = job_of(**task)
    batches = job.run(steps) if epochs is None else [job.epoch() for _ in range(epochs)]
    found = {"batches": batches, "state": job.state()}
    job.close()
    return found


def in_a_new_process(module, tasks, timeout_s=100):
    """What the module's run() gives for each of the tasks, in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", "import loading.jobs as jobs; jobs.main()", module],
        cwd=TESTS,
        input=json.dumps(tasks),
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def main():
    """What in_a_new_process() runs."""
    torch.set_num_threads(1)
    module = importlib.import_module(sys.argv[1])
    print(json.dumps([module.run(**task) for task in json.loads(sys.stdin.read())]))
