"""The library's order of streams for a reference's."""

from headrace.planning import Batching, Shuffle, StreamOrder, StreamShards


def real(streams):
    """The StreamOrder of planning.stream_reference.Streams."""
    return StreamOrder(
        [StreamShards(shards, rows) for shards, rows in zip(streams.shards, streams.chosen, strict=True)],
        shuffle=streams.shuffle and Shuffle(*streams.shuffle),
        seed=streams.seed,
        sampling="fixed" if streams.fixed else "balanced",
        batching=Batching(streams.method, streams.batch, streams.devices),
    )
