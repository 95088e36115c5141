"""What is killed: writers of samples, in processes that the preloaded library counts.

Each kind has the same methods, each of which is given a directory. `old` are the samples of the version that lies there
before, three shards, and `new` those of the one that takes its place, three shards of other lengths.
"""

from headrace.datasets import JSONWriter, MDSWriter, SampleStorage
from headrace.datasets.samples import sample_writer
from headrace.preparation import prepare

OLD = range(1000, 1013)
NEW = range(11)


def sample(number):
    return {"id": number, "text": f"text {number} " * (number % 5)}


class Samples:
    """A writer with its options."""

    others = ("resume", "write")  # commands that come to a good end, too, after another one was killed
    refuses_whole = True

    def __init__(self, writer, *, spill_bytes=sample_writer.SPILL_BYTES, pair=False, max_workers=1, **options):
        self.writer, self.spill_bytes, self.pair = writer, spill_bytes, pair
        self.options = {"max_workers": max_workers, **options}

    def places(self, folder):
        """Where the dataset will be: one directory, or two with the same files."""
        return [f"{folder}/local", f"{folder}/remote"] if self.pair else [f"{folder}"]

    def run(self, folder, samples, a_shard, **options):
        sample_writer.SPILL_BYTES = self.spill_bytes
        places = self.places(folder)
        out = {"out": tuple(places), "keep_local": True} if self.pair else {"out": places[0]}
        with self.writer(columns={"id": "int", "text": "str"}, **out, **self.options, **options) as writing:
            for count in range(writing.num_safe_samples, len(samples)):
                if count and count % a_shard == 0:
                    writing.flush_shard()
                writing.write(sample(samples[count]))

    def write(self, folder):
        """A plain writer."""
        self.run(folder, NEW, 4)

    def resume(self, folder):
        """The same, after the last whole shard of one that died."""
        self.run(folder, NEW, 4, resume=True)

    def overwrite(self, folder):
        """The same, in place of whatever is there."""
        self.run(folder, NEW, 4, exist_ok=True)

    def write_old(self, folder):
        """The older version."""
        self.run(folder, OLD, 5)


class Prepared:
    """A directory that prepare() fills, three tasks in turn, of which each has a folder."""

    others = ()
    refuses_whole = False  # what is done is not done again

    def places(self, folder):
        return [f"{folder}"]

    def run(self, folder, samples, a_task, **options):
        def records(task):
            yield from map(sample, samples[task * a_task : (task + 1) * a_task])

        storage = SampleStorage(folder, {"id": "int", "text": "str"}, max_workers=1)
        prepare(range(3), records, storage, workers=1, progress=False, settings={"of": str(samples)}, **options)

    def write(self, folder):
        """A plain preparation."""
        self.run(folder, NEW, 4)

    def overwrite(self, folder):
        """The same, in place of whatever is there."""
        self.run(folder, NEW, 4, overwrite=True)

    def write_old(self, folder):
        """The older version."""
        self.run(folder, OLD, 5)


mds = Samples(MDSWriter, hashes=["xxh64"])
mds_zstd = Samples(MDSWriter, compression="zstd", hashes=["sha1"])
mds_spilled = Samples(MDSWriter, spill_bytes=20, max_workers=3)
mds_pair = Samples(MDSWriter, pair=True)
json = Samples(JSONWriter, hashes=["xxh64"])
json_zstd = Samples(JSONWriter, compression="zstd")
json_pair = Samples(JSONWriter, pair=True, compression="zstd")
prepared = Prepared()
json_workers = Samples(JSONWriter, max_workers=3)
