"""Ranks without processes: contexts that say they are one of several, and what their streams give together."""

from dataclasses import dataclass, field

from headrace import AutoDataConfig, AutoDataProvider, InitializeDataProviderContext


@dataclass
class Axis:
    """A mesh's axis."""

    rank: int
    number: int

    def size(self):
        return self.number

    def get_local_rank(self):
        return self.rank


@dataclass
class MeshParameters:
    is_distributed: bool


@dataclass
class Place:
    """A context as d9d's: no class of Headrace's, only what the protocol asks for."""

    rank: int = 0
    world_size: int = 1
    mesh_params: MeshParameters = field(init=False)

    def __post_init__(self):
        self.mesh_params = MeshParameters(self.world_size > 1)

    def mesh_for(self, domain):
        assert self.world_size > 1, "d9d has no mesh where nothing is distributed"
        assert domain == "batch"
        return {"dp": Axis(self.rank, self.world_size)}


def stream_of(dataset, config, rank=0, world_size=1, collator=list):
    """A rank's stream of the dataset."""
    provider = AutoDataProvider(lambda _: dataset, collator, AutoDataConfig(**config))
    return provider(InitializeDataProviderContext(dist_context=Place(rank, world_size)))


def streams_of(dataset, config, world_size, collator=list):
    """Every rank's stream."""
    return [stream_of(dataset, config, rank, world_size, collator) for rank in range(world_size)]


def dealt_back(per_rank):
    """The rows of a step in the order of all ranks: row i was rank i mod world_size's."""
    world_size = len(per_rank)
    total = sum(map(len, per_rank))
    return [per_rank[place % world_size][place // world_size] for place in range(total)]


def rows_of(pack):
    """The rows of a pack of microbatches that are lists of rows."""
    return [row for microbatch in pack for row in microbatch]


def global_rows(packs):
    """The rows of one step, from each rank's pack of microbatches that are lists of rows."""
    return dealt_back([rows_of(pack) for pack in packs])


def global_steps(streams):
    """The rows of every step, until all ranks end at once."""
    return [global_rows(packs) for packs in zip(*streams, strict=True)]
