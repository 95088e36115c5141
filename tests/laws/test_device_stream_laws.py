"""Whatever a consumer does with a stream of packs, it gets each pack once and in order, and every state goes on."""

from hypothesis import assume, event, given
from hypothesis import strategies as st

from headrace import FixedCountMicrobatchPacker, StatefulDataLoader, build_device_pack_stream
from headrace.errors import ClosedError
from loading.pack_streams import NumberedPacks, numbers, pack_threads
from loading.samples import Numbers

DEPTHS = st.integers(0, 4)


class Broken(Exception):
    pass


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 5)),
        st.tuples(st.just("break"), st.sampled_from(["drop", "close the iterator", "close the stream", "keep"])),
        st.tuples(st.just("resume"), DEPTHS),
        st.tuples(st.just("rewind"), st.integers(0, 10)),
    ),
    max_size=12,
)


class Consumer:
    """Does with a stream what it is told to, and knows what has to come."""

    def __init__(self, size, depth, errors):
        self.size = size
        self.stream = build_device_pack_stream(NumberedPacks(size, errors), "cpu", depth)
        self.packs = None
        self.kept = []  # iterators that were overtaken
        self.place = (0, 0)
        self.states = [(self.place, self.stream.state_dict())]

    def take(self, count):
        for _ in range(count):
            if self.packs is None:
                self.packs = iter(self.stream)
            try:
                pack = next(self.packs)
            except StopIteration:
                assert self.place[1] == self.size
                self.place = (self.place[0] + 1, 0)
                self.packs = None
            except Broken:
                event("an error")
                self.packs = None
            else:
                assert numbers([pack]) == [self.place]
                self.place = (self.place[0], self.place[1] + 1)
            state = self.stream.state_dict()
            assert state == {"place": list(self.place)}
            self.states.append((self.place, state))

    def break_off(self, how):
        packs, self.packs = self.packs, None
        if how == "close the iterator" and packs is not None:
            packs.close()
        elif how == "close the stream":
            self.stream.close()
        elif how == "keep" and packs is not None:
            self.kept.append(packs)

    def resume(self, depth):
        """In another process, say: with another stream."""
        state = self.stream.state_dict()
        self.stream.close()
        self.packs = None
        self.stream = build_device_pack_stream(NumberedPacks(self.size), "cpu", depth)
        self.stream.load_state_dict(state)

    def rewind(self, number):
        self.place, state = self.states[number % len(self.states)]
        self.stream.load_state_dict(state)
        self.packs = None


@given(st.integers(1, 6), DEPTHS, st.sets(st.integers(0, 20), max_size=3), STEPS)
def test_a_consumer_gets_the_packs_in_order_whatever_it_does_between(size, depth, errors, steps):
    consumer = Consumer(size, depth, {pulls: Broken() for pulls in errors})
    for step, argument in steps:
        match step:
            case "take":
                consumer.take(argument)
            case "break":
                consumer.break_off(argument)
            case "resume":
                consumer.resume(argument)
            case "rewind":
                consumer.rewind(argument)
    consumer.take(2)
    for packs in consumer.kept:
        try:
            next(packs)
        except (ClosedError, StopIteration):
            continue
        assert packs is consumer.packs
    consumer.stream.close()
    assert pack_threads() == []


@given(
    st.integers(0, 40),
    st.integers(1, 3),
    st.integers(1, 3),
    st.booleans(),
    DEPTHS,
    DEPTHS,
    st.integers(0, 20),
    st.integers(0, 3),
)
def test_over_a_loader_a_state_behind_any_pack_goes_on_with_the_next(
    size, batch, together, drop_last, depth, later, taken, threads
):
    assume(size >= batch or not drop_last)  # an epoch without a step is refused

    def packer():
        loader = StatefulDataLoader(
            Numbers(size),
            rank=0,
            world_size=1,
            local_batch_size=batch,
            shuffle=True,
            shuffle_seed=5,
            drop_last=drop_last,
            num_workers=threads,
            device="cpu",
        )
        return FixedCountMicrobatchPacker(loader, together, drop_last=drop_last)

    def ids(packs):
        return [[microbatch["id"].tolist() for microbatch in pack] for pack in packs]

    reference = [*ids(packer())]
    stream = build_device_pack_stream(packer(), "cpu", depth)
    packs, got = iter(stream), []
    for pack in packs:
        got += ids([pack])
        if len(got) >= taken:
            break
    taken = len(got)
    state = stream.state_dict()
    stream.close()
    fresh = build_device_pack_stream(packer(), "cpu", later)
    fresh.load_state_dict(state)
    if taken < len(reference):
        assert got + ids(fresh) == reference
    else:
        assert got == reference
    assert ids(stream) == reference[taken:] or taken >= len(reference)  # the closed one goes on, too
    fresh.close()
    stream.close()
    assert pack_threads() == []
