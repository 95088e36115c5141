"""Orders that are made of whole global batches are read in just these; options stay what the dataset was made with."""

import pytest
from torch.utils.data import DataLoader

from headrace import ElasticBatchSampler, Plan, StatefulDataLoader, StreamingDataLoader, StreamingDataset
from headrace.errors import OptionError, StateError
from streaming_dataset.written import numbers_of, streams, write_streams

METHODS = ("stratified", "per_stream", "device_per_stream")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return write_streams(tmp_path_factory.mktemp("streams"))


def made(folders, method, **options):
    return StreamingDataset(
        streams=streams(folders), batch_size=4, batching_method=method, shuffle=True, rank=0, world_size=2, **options
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_loader_refuses_a_state_from_inside_a_global_batch(folders, method):
    state = made(folders, method).state_dict(num_samples=12, from_beginning=True)
    loader = StreamingDataLoader(made(folders, method))
    before = loader.state_dict()
    with pytest.raises(StateError, match=r"row 12 .* 8 rows"):
        loader.load_state_dict(state)
    assert loader.state_dict() == before
    ranks = {"rank": 0, "world_size": 2, "drop_last": False}
    own = StatefulDataLoader(made(folders, method).as_view(), global_batch_size=8, **ranks)
    with pytest.raises(StateError, match=r"row 12 .* 8 rows"):
        own.load_state_dict(state)
    sampler = ElasticBatchSampler(made(folders, method).as_view(), 8, shuffle=False, **ranks)
    with pytest.raises(StateError, match=r"row 12 .* 8 rows"):
        sampler.load_state_dict(state)
    loader.load_state_dict(made(folders, method).state_dict(num_samples=16, from_beginning=True))
    expected = numbers_of(made(folders, method))[8:12]
    assert numbers_of([next(iter(loader))]) == expected


@pytest.mark.parametrize("method", METHODS)
def test_loaders_over_a_dataset_that_stands_inside_a_global_batch_refuse_to_begin_there(folders, method):
    state = made(folders, method).state_dict(num_samples=12, from_beginning=True)
    dataset = made(folders, method)
    dataset.load_state_dict(state)
    with pytest.raises(StateError, match=r"row 12 .* 8 rows"):
        iter(StreamingDataLoader(dataset))


@pytest.mark.slow  # torch waits five seconds for a worker that raised
def test_workers_of_a_stock_loader_refuse_that_too(folders):
    dataset = made(folders, "per_stream")
    dataset.load_state_dict(dataset.state_dict(num_samples=12, from_beginning=True))
    with pytest.raises(StateError, match=r"row 12 .* 8 rows"):
        list(DataLoader(dataset, batch_size=4, num_workers=1))


@pytest.mark.parametrize("method", METHODS)
def test_rows_go_on_inside_a_global_batch_one_by_one(folders, method):
    state = made(folders, method).state_dict(num_samples=12, from_beginning=True)
    dataset = made(folders, method)
    whole = numbers_of(dataset)
    dataset.load_state_dict(state)
    assert numbers_of(dataset) == whole[6:]


def test_rows_of_all_streams_go_on_anywhere(folders):
    loader = StreamingDataLoader(made(folders, "random"))
    loader.load_state_dict(made(folders, "random").state_dict(num_samples=12, from_beginning=True))
    assert numbers_of([next(iter(loader))]) == numbers_of(made(folders, "random"))[6:10]


@pytest.mark.parametrize("method", METHODS)
def test_loaders_with_another_global_batch_are_refused(folders, method):
    view = made(folders, method).as_view()
    loader = StatefulDataLoader(view, global_batch_size=6, rank=0, world_size=2)
    with pytest.raises(OptionError, match=r"global_batch_size=6.*8"):
        next(iter(loader))
    loader = StatefulDataLoader(view, local_batch_size=2, rank=0, world_size=2)
    with pytest.raises(OptionError, match=r"local_batch_size=2.*8"):
        len(loader)
    with pytest.raises(OptionError, match=r"global_batch_size=16.*8"):
        Plan(view, 16, 2)
    with pytest.raises(OptionError, match=r"global_batch_size=16.*8"):
        iter(ElasticBatchSampler(view, 16, shuffle=False, rank=0, world_size=2))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 6),
        ("shuffle", False),
        ("shuffle_seed", 1),
        ("shuffle_algo", "naive"),
        ("shuffle_block_size", 10),
        ("num_canonical_nodes", 2),
        ("sampling_method", "fixed"),
        ("batching_method", "random"),
        ("replication", 2),
    ],
)
def test_what_decides_the_order_can_be_read_and_not_be_changed(folders, name, value):
    dataset = made(folders, "per_stream")
    given = getattr(dataset, name)
    assert given == getattr(dataset.options, name)
    setattr(dataset, name, given)  # as subclasses do, which keep what they were given
    with pytest.raises(OptionError, match=f"{name}="):
        setattr(dataset, name, value)
    assert getattr(dataset, name) == given


def test_a_subclass_may_have_attributes_of_any_name_before_it_is_a_dataset(folders):
    class Kept(StreamingDataset):
        def __init__(self, batch_size, **options):
            self.batch_size = batch_size
            super().__init__(batch_size=batch_size, **options)

    assert Kept(4, local=folders[0]).batch_size == 4
    with pytest.raises(AttributeError, match="no attribute 'shufle'"):
        Kept(4, local=folders[0]).shufle
