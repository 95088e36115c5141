"""pad=True: the last global batch of an epoch is filled up with the epoch's first rows."""

from loading.samples import epoch, make, together


def ranks(size, world_size, count, **options):
    return [
        make(count, global_batch_size=size, rank=rank, world_size=world_size, drop_last=False, pad=True, **options)
        for rank in range(world_size)
    ]


def test_the_last_batch_is_filled_with_the_first_rows_of_its_epoch():
    loaders = ranks(8, 2, 20)
    assert together([epoch(loader) for loader in loaders]) == [
        list(range(8)),
        list(range(8, 16)),
        [16, 17, 18, 19, 0, 1, 2, 3],
    ]
    assert [loader.padding for loader in loaders] == [2, 2]
    assert loaders[0].describe()["padding"] == 2
