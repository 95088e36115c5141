"""The training loop: what a step costs when there is nothing to train.

    python -m benchmarks.trainer [--check]      also under torchrun, for the cost of agreeing

One parameter, microbatches that lie in memory, SGD, gradients measured and not clipped, no log, no checkpoint. Beside
it the same forward and backward passes and optimizer steps in a bare loop, which is what a step costs anyway. Each time
is the least processor time of five rounds of 200 steps, a step; under torchrun the wall's, since ranks wait.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from benchmarks.measure import Bound, conclude, describe_machine
from headrace import (
    BuildForwardInputsContext,
    BuildForwardInputsResult,
    ComputeLossContext,
    ComputeLossResult,
    DataPrefetchConfig,
    DeviceMeshParameters,
    InitializeModelStageContext,
    InitializeModelStageResult,
    ModelProvider,
    RunConfig,
    TrainerConfig,
    TrainingConfigurator,
    TrainTask,
)

STEPS, ROUNDS = 200, 5
MOST_MS = 1.0
MICROBATCHES = (1, 8)


class Empty(torch.nn.Module):
    """A parameter, and nothing to do with it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.weight


class Models(ModelProvider[Empty]):
    def initialize_model_stage(self, context: InitializeModelStageContext) -> InitializeModelStageResult[Empty]:
        return InitializeModelStageResult(model=Empty())


class Task(TrainTask[torch.Tensor, torch.Tensor, None, torch.Tensor, None]):
    def build_forward_inputs(
        self, ctx: BuildForwardInputsContext[torch.Tensor]
    ) -> BuildForwardInputsResult[torch.Tensor, None, None]:
        return BuildForwardInputsResult(input=ctx.batch)

    def compute_loss(self, ctx: ComputeLossContext[torch.Tensor, None]) -> ComputeLossResult:
        return ComputeLossResult(loss=ctx.pipeline_results.sum())


class Packs:
    """The same pack again and again."""

    is_elastic = True
    total_steps = STEPS

    def __init__(self, pack: Sequence[torch.Tensor]) -> None:
        self._pack = pack

    def __iter__(self) -> Iterator[Sequence[torch.Tensor]]:
        return iter([self._pack] * STEPS)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        pass


def looped(microbatches: int, prefetch: int, mesh: DeviceMeshParameters) -> Callable[[], object]:
    """A round through the loop."""
    pack = [torch.ones(4)] * microbatches
    return (
        TrainingConfigurator(
            mesh=mesh,
            parameters=TrainerConfig(
                run=RunConfig(name="empty"), data_prefetch=DataPrefetchConfig(prefetch_factor=prefetch)
            ),
            task_provider=lambda _: Task(),
            model_provider=Models(),
            data_provider=lambda context: Packs(pack),
            optimizer_provider=lambda context: torch.optim.SGD(context.model.parameters(), lr=0.0),
            lr_scheduler_provider=lambda context: torch.optim.lr_scheduler.ConstantLR(context.optimizer, 1.0),
        )
        .configure()
        .train
    )


def bare(microbatches: int) -> Callable[[], object]:
    """A round of the same work without it."""
    model, pack = Empty(), [torch.ones(4)] * microbatches
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)

    def steps() -> None:
        for _ in range(STEPS):
            for inputs in pack:
                model(inputs).sum().backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

    return steps


def milliseconds(make: Callable[[], Callable[[], object]], clock: Callable[[], float]) -> float:
    """The least of the rounds, a step; making them ready does not count."""
    taken = []
    for _ in range(ROUNDS):
        work = make()
        begun = clock()
        work()
        taken.append(clock() - begun)
    return 1000 * min(taken) / STEPS


def main() -> int:
    """0, or 1 where --check was given and a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail when a claim does not hold")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ranks = 1
    if torch.distributed.is_torchelastic_launched():
        torch.distributed.init_process_group("gloo")
        ranks = torch.distributed.get_world_size()
    mesh = DeviceMeshParameters(data_parallel_replicate=ranks)
    clock = time.process_time if ranks == 1 else time.perf_counter
    times = {}
    for microbatches in MICROBATCHES:
        times[microbatches, "bare"] = milliseconds(lambda count=microbatches: bare(count), clock)  # type: ignore[misc]
        for prefetch in (0, 1):
            times[microbatches, f"prefetch {prefetch}"] = milliseconds(
                lambda count=microbatches, ahead=prefetch: looped(count, ahead, mesh),  # type: ignore[misc]
                clock,
            )
    if ranks > 1 and torch.distributed.get_rank() > 0:
        return 0
    print(describe_machine("torch"))
    print(f"\nA step of {ranks} rank{'s' * (ranks > 1)}, ms:")
    for (microbatches, what), taken in times.items():
        print(f"  {microbatches} microbatch{'es' * (microbatches > 1):2}  {what:12} {taken:8.3f}")
    slowest = max(
        times[count, f"prefetch {ahead}"] - times[count, "bare"] for count in MICROBATCHES for ahead in (0, 1)
    )
    claim = f"the loop adds less than {MOST_MS:g} ms to a step: {MOST_MS:g} ms over the most it adds"
    return conclude([Bound(claim, MOST_MS / slowest, 1.0)] if ranks == 1 else [], check=options.check)


if __name__ == "__main__":
    raise SystemExit(main())
