"""StreamingDataset: samples of MDS and other shards from anywhere, mixed and shuffled, for each rank and worker."""

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch.utils.data

from headrace.errors import OptionError, StateError
from headrace.loading.order import check_start, order_settings, restored
from headrace.loading.world import World
from headrace.planning import Cursor, encode_state
from headrace.streaming.epochs import EpochRecord
from headrace.streaming.foreign_states import check_ours
from headrace.streaming.iteration import Reading, RowIterator, Share
from headrace.streaming.options import DECIDING, READABLE, Settings
from headrace.streaming.places import check_hashes, opened_stores
from headrace.streaming.samples import StoredSamples, StreamedSamples
from headrace.streaming.shard_tables import ShardTables
from headrace.streaming.stream import Stream, streams_of
from headrace.streaming.view import StreamedView
from headrace.streaming.world import Ranks
from headrace.views.options import whole_number

__all__ = ["StreamingDataset"]


class StreamingDataset(ShardTables, torch.utils.data.IterableDataset[Any]):
    """The samples of one or several streams: by number (`dataset[i]`), and in an order of epochs (`for ... in`).

    Constructing it reads nothing; indexes are read at first use. An iteration gives this rank's rows, in a worker of a
    DataLoader that worker's; each `iter()` is the next epoch, and all ranks give equally many (`padding` says how many
    rows repeat at the end for that). StreamingDataLoader repeats nothing.

    | argument | here |
    | --- | --- |
    | streams, or remote, local, split | what is read: `remote` through the directory `local`, or `local` itself |
    | download_retry, download_timeout | a request is tried once more so often; seconds that it may stand still |
    | validate_hash | a hash that every index must have; digests that there are, are always compared |
    | keep_zip | no difference: a cache keeps decompressed shards alone |
    | epoch_size | rows of an epoch, such as "64M"; by default each stream once, or what its weight says |
    | predownload | rows ahead of which files are fetched; default: 4,096 |
    | cache_limit | bytes on this node's disk, such as "64gb"; of several `local` each may have an equal part of it |
    | sampling_method | "balanced": epochs go on through a stream, all comes before anything comes again; "fixed" |
    | sampling_granularity | no difference: a pooled shuffle keeps what is drawn from few shards at a time |
    | partition_algo | no difference: rows are dealt to ranks one by one, whatever the number of nodes |
    | num_canonical_nodes | parts of an epoch with shards of their own (lanes); default: 1 |
    | batch_size | rows a step for this rank: what its loader collects; needed with worker processes |
    | shuffle, shuffle_seed | whether, and by what; without it streams come one after the other, in stored order |
    | shuffle_algo | "pooled": few shards at a time; "global". Streaming's names: "naive" is global, others pooled |
    | shuffle_block_size | samples that are shuffled among each other in a pool |
    | batching_method | "random", "stratified", "per_stream", "device_per_stream" |
    | allow_unsafe_types | whether `pkl` may be read, which can run any code |
    | replication | so many ranks in a row get the same samples |
    | stream_name, stream_config | nothing but "stream": pass Stream objects |
    | rank, world_size, device_mesh | default: torch.distributed's, else RANK and WORLD_SIZE, else 0 of 1 |

    A subclass may say what `dataset[i]` is in `__getitem__` or `get_item`: iterations and loaders then give that.
    OptionError for what makes no sense, when it is constructed or at first use.
    """

    def __init__(  # noqa: PLR0913 - Streaming's signature
        self,
        *,
        streams: Sequence[Stream] | None = None,
        remote: Any = None,
        local: Any = None,
        split: str | None = None,
        download_retry: int = 2,
        download_timeout: float = 60.0,
        validate_hash: str | None = None,
        keep_zip: bool = False,
        epoch_size: int | str | None = None,
        predownload: int | None = None,
        cache_limit: int | str | None = None,
        sampling_method: str = "balanced",
        sampling_granularity: int = 1,
        partition_algo: str = "relaxed",
        num_canonical_nodes: int | None = None,
        batch_size: int | None = None,
        shuffle: bool = False,
        shuffle_algo: str = "py1e",
        shuffle_seed: int = 9176,
        shuffle_block_size: int | None = None,
        batching_method: str = "random",
        allow_unsafe_types: bool = False,
        replication: int | None = None,
        stream_name: str = "stream",
        stream_config: Mapping[str, Any] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        device_mesh: Any = None,
    ) -> None:
        super().__init__()
        self.options = Settings(
            epoch_size=epoch_size,
            predownload=predownload,
            cache_limit=cache_limit,
            sampling_method=sampling_method,
            sampling_granularity=sampling_granularity,
            partition_algo=partition_algo,
            num_canonical_nodes=num_canonical_nodes,
            batch_size=batch_size,
            shuffle=shuffle,
            shuffle_algo=shuffle_algo,
            shuffle_seed=shuffle_seed,
            shuffle_block_size=shuffle_block_size,
            batching_method=batching_method,
            allow_unsafe_types=allow_unsafe_types,
            replication=replication,
            stream_name=stream_name,
            stream_config=stream_config,
        )
        self.streams = streams_of(
            streams,
            remote,
            local,
            split=split,
            download_retry=download_retry,
            download_timeout=download_timeout,
            validate_hash=validate_hash,
            keep_zip=keep_zip,
        )
        self.stored = StoredSamples(
            opened_stores(self.streams, self.options.cache_limit), allow_unsafe_types=self.options.allow_unsafe_types
        )
        self._ranks = Ranks(rank, world_size, device_mesh, self.options.replication)
        self._view: tuple[World, StreamedView] | None = None  # how many ranks there are may decide the order
        self._epochs = EpochRecord()
        self._begun = 0
        self._iterator: RowIterator | None = None
        self._asked: Cursor | int | None = None
        self._has_own_loader = False  # a StreamingDataLoader, which never iterates it
        self._loader_leads = False  # and it is what began last
        self.next_loader_at = Cursor()

    def __getattr__(self, name: str) -> Any:
        if name in READABLE and "options" in self.__dict__:  # what it was made with, by Streaming's names
            return getattr(self.options, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in DECIDING and "options" in self.__dict__ and value != (has := getattr(self.options, name)):
            raise OptionError(name, value, f"{has!r}, with which this dataset was made: make another one")
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_iterator": None, "_view": None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.streams))})"

    def __len__(self) -> int:
        """Rows of an epoch for each rank, as many for all."""
        return self._share().rows_a_rank

    def __getitem__(self, at: Any) -> Any:
        """Sample `at` of all streams one after the other, negative from the end; IndexError outside.

        A slice, list or array (nested, too) gives a list of samples.
        """
        if isinstance(at, slice):
            at = list(range(*at.indices(self.size)))
        if not isinstance(at, list | np.ndarray) or not np.ndim(at):
            return self.get_item(at)
        if np.ndim(at) == 1 and not self._is_overridden():
            return self.stored.__getitems__(at)  # together: each may be a round trip
        return [self[number] for number in at]

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """Sample sample_id, negative from the end. retry makes no difference: what a cache let go is fetched anew."""
        return self.stored[sample_id]

    def __iter__(self) -> Iterator[Any]:
        """This rank's samples of the next epoch, or from where a state says; in a worker, that worker's."""
        info = torch.utils.data.get_worker_info()
        if info is not None and self.options.batch_size is None:
            raise OptionError(
                "batch_size",
                None,
                "that of the DataLoader, whose workers take turns batch by batch; StreamingDataLoader knows it itself",
            )
        self._ranks.check_dealt_once(has_own_loader=self._has_own_loader)
        self._begun += 1
        self._loader_leads = False
        token = (-1 if info is None else info.seed - info.id, self._begun)
        start = self._epochs.join(token, 0 if info is None else info.id)
        view = self.as_view()
        if info is not None:  # which takes batches in turn
            check_start(view, start)
        self._iterator = RowIterator(
            self._share() if info is None else self._share(info.id, info.num_workers),
            start,
            Reading(
                view.locate,
                view.base.__getitems__,
                one=view.base.__getitem__ if self._is_overridden() else None,
                below=view.base,
                rows_ahead=self.options.predownload,
                begin_next=self._epochs.continue_at,
            ),
        )
        return self._iterator

    def as_view(self) -> StreamedView:
        """The rows of all ranks in the order of this dataset: for StatefulDataLoader, ElasticBatchSampler, Plan."""
        world = self.world()
        if self._view is None or self._view[0] != world:
            check_hashes(self.streams, self.stored)
            portions = [stream.portion for stream in self.streams]
            order = self.options.order(self.shards_of_streams(), portions, world.world_size)
            self._view = world, StreamedView(StreamedSamples(self, one_by_one=self._is_overridden()), order)
        return self._view[1]

    def world(self) -> World:
        """This process's place among the ranks that read different samples. Workers have that of their loader."""
        return self._ranks.world()

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be of this epoch, as Trainer and accelerate say it before each one. Nothing changes
        when it would be anyway, nor where load_state_dict() said a place, and nothing has begun there yet."""
        epoch = whole_number("epoch", epoch, 0)
        self._epochs.turn_to(epoch)
        if not isinstance(self._asked, Cursor):
            self._asked = epoch

    def taken_over(self) -> Cursor | int | None:
        """Where StreamingDataLoader has to begin: where it was said here (by load_state_dict(), next_epoch, or an
        epoch by set_epoch()) since it began last. None where nothing was."""
        self._has_own_loader = True
        asked, self._asked = self._asked, None
        return asked

    def begun_at(self, cursor: Cursor, *, waits: bool = False) -> None:
        """StreamingDataLoader has begun here, or waits to: state_dict(num_samples) and next_epoch follow it, and so
        does the next loader that is made over this dataset."""
        self._epochs.begun_at(cursor)
        self._iterator = None
        self._loader_leads = not waits
        self.next_loader_at = cursor if waits else Cursor(cursor.epoch + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release maps and files; opened again when used, it sees what is there by then. A loader that has its order
        from before refuses other data (DatasetChangedError): make a new one."""
        self._view = None
        self.stored.close()

    def state_dict(self, num_samples: int | None = None, from_beginning: bool = True) -> dict[str, Any]:
        """The record of a run that has got num_samples rows of this epoch, counted over all ranks.

        from_beginning=False counts them from where the epoch was begun, after a resume. None is what the iteration in
        this process handed out; in a worker process, where that cannot be known, what the epoch began with. StateError
        where a StreamingDataLoader reads it, which counts itself.
        """
        begun = self._iterator
        start = self._epochs.current
        if num_samples is None:
            if self._loader_leads:
                raise StateError(
                    "a StreamingDataLoader reads this dataset, and knows what it handed out: save loader.state_dict(), "
                    "or say num_samples"
                )
            position = start.position
            if begun is not None and begun.share.num_workers == 1:
                start, position = begun.start, begun.position
        else:
            position = whole_number("num_samples", num_samples, 0) + (0 if from_beginning else start.position)
        rows = self.epoch_size
        cursor = Cursor(start.epoch, position) if position < rows or rows == 0 else Cursor(start.epoch + 1)
        return encode_state(cursor, order_settings(self.as_view(), drop_last=False))

    def load_state_dict(self, obj: Mapping[str, Any]) -> None:
        """Begin the next iteration where the record says, with any number of ranks and workers.

        StateMismatchError names each setting that differs: data, streams, seed, order. StateError for what is no
        record; one of Streaming's is of another order.
        """
        check_ours(obj)
        settings = obj.get("settings") if isinstance(obj, Mapping) else None
        drop_last = isinstance(settings, Mapping) and bool(settings.get("drop_last"))
        _, cursor = restored(obj, self.as_view(), drop_last=drop_last)
        self._begin_at(cursor)

    @property
    def size(self) -> int:
        """How many samples all streams have."""
        return len(self.stored)

    @property
    def epoch_size(self) -> int:
        """Rows of an epoch, for all ranks together."""
        return len(self.as_view())

    @property
    def num_samples(self) -> int:
        """As `size`."""
        return self.size

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iteration is of."""
        return self._epochs.next.epoch

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        self._begin_at(Cursor(whole_number("next_epoch", epoch, 0)))

    @property
    def padding(self) -> int:
        """How many rows repeat at the end of this rank's share of an epoch. StreamingDataLoader repeats none."""
        return self._share().padding(0)

    def _begin_at(self, cursor: Cursor) -> None:
        self._epochs.begin_at(cursor)
        self._asked = cursor
        self._iterator = None
        self._loader_leads = False

    def _share(self, worker: int = 0, num_workers: int = 1) -> Share:
        return Share(self.epoch_size, self.options.batch_size or 1, self.world(), worker, num_workers)

    def _is_overridden(self) -> bool:
        ours = StreamingDataset
        kind = type(self)
        return kind.__getitem__ is not ours.__getitem__ or kind.get_item is not ours.get_item
