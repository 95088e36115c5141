"""MosaicML Streaming's front door on Headrace's inside: datasets of samples from anywhere, mixed, shuffled, cached.

Stream(s) --places--> one SampleDataset --> samples by number
positions --StreamOrder--> numbers --StreamedView--> samples in order --> this rank's, this worker's

stream.py    options.py   places.py      what is read, how, and from where
dataset.py   samples.py   view.py        the dataset: by number, and in its order
iteration.py epochs.py                   one iteration in one process; which epoch it is
loader.py                                torch's DataLoader with a state
nothing_to_clean.py                      what scripts of Streaming's call
"""

from headrace.streaming.dataset import StreamingDataset
from headrace.streaming.loader import StreamingDataLoader
from headrace.streaming.nothing_to_clean import clean_stale_shared_memory
from headrace.streaming.stream import Stream

__all__ = ["Stream", "StreamingDataLoader", "StreamingDataset", "clean_stale_shared_memory"]
