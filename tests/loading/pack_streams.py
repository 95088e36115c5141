"""Streams of numbered packs, that fail where they are told to and say who pulled them."""

import threading

import torch


class NumberedPacks:
    """Passes of `size` packs; pack k of pass p is [{"x": tensor [p, k]}]. A pass that was broken off starts anew.

    errors maps a count of pulls, over all passes, to what is raised there, once, in place of a pack.
    """

    is_elastic = True

    def __init__(self, size=6, errors=()):
        self.size = size
        self.errors = dict(errors)
        self.place = (0, 0)  # pass, packs of it that were handed out
        self.moved = False  # since the last load
        self.pulls = 0
        self.pulled = threading.Semaphore(0)
        self.threads = set()
        self.closed = 0
        self.open_iterators = 0

    @property
    def total_steps(self):
        return 10 * self.size

    @property
    def steps_left(self):
        return self.total_steps - self.place[0] * self.size - self.place[1]

    def __iter__(self):
        if self.moved:
            self.place = (self.place[0], 0)
        self.moved = False
        return self._packs()

    def _packs(self):
        self.open_iterators += 1
        try:
            while self.place[1] < self.size:
                self.threads.add(threading.current_thread().name)
                if self.pulls in self.errors:
                    raise self.errors.pop(self.pulls)
                number, pack = self.place
                self.place, self.moved = (number, pack + 1), True
                self.pulls += 1
                self.pulled.release()
                yield [{"x": torch.tensor([number, pack])}]
            self.place, self.moved = (self.place[0] + 1, 0), False
        finally:
            self.open_iterators -= 1

    def state_dict(self):
        return {"place": list(self.place)}

    def load_state_dict(self, state):
        number, pack = state["place"]
        if not 0 <= pack <= self.size:
            raise ValueError(f"pack {pack} of {self.size}")
        self.place, self.moved = (number, pack), False

    def close(self):
        self.closed += 1


def numbers(packs):
    """(pass, pack) of each of these packs."""
    return [tuple(pack[0]["x"].tolist()) for pack in packs]


def pack_threads():
    """The threads that pull packs ahead in this process."""
    return [thread for thread in threading.enumerate() if thread.name == "headrace-packs"]
