"""The loop: pull a pack, forward and backward over its microbatches, add up over ranks, step, save.

          rank 0  pull --.                .-- forward, backward --.                  .-- optimizer, schedule
          rank 1  pull --+-- all agree ---+-- forward, backward --+-- all gradients -+-- optimizer, schedule
          rank 2  pull --'  to go on      '-- forward, backward --'   or an error    '-- optimizer, schedule

Whatever one rank meets (the end of its data, an error, a request to stop) becomes known to all of them at the same
step, so none waits for another in vain.
"""

import gc
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.random import fork_rng

from headrace.loading.device_stream import DevicePackStream, build_device_pack_stream
from headrace.loading.world import World
from headrace.planning import derive_seed
from headrace.training.agreement import PATIENCE_S, check_agreed, check_same, together
from headrace.training.checkpoint import Checkpoints, DataState, TrainedState
from headrace.training.context import DeviceMeshParameters, DistributedContext, data_parallel_world
from headrace.training.data import DataProvider, InitializeDataProviderContext
from headrace.training.gradients import Gradients
from headrace.training.models import check_parameters, needs_shared, parameters_of
from headrace.training.parameters import StepActionPeriod, TrainerConfig
from headrace.training.providers import (
    BuildForwardInputsContext,
    ComputeLossContext,
    FinalizeContext,
    InitializeLRSchedulerContext,
    InitializeModelStageContext,
    InitializeOptimizerStageContext,
    LRSchedulerProtocol,
    LRSchedulerProvider,
    ModelProvider,
    OptimizerProtocol,
    OptimizerProvider,
    ParallelizeModelStageContext,
    StepDoneContext,
    TrainTask,
    TrainTaskProvider,
    TrainTaskProviderContext,
)
from headrace.training.reports import Reports
from headrace.training.schedule import JobSchedule
from headrace.training.stopping import StopRequest

__all__ = ["Trainer", "TrainingConfigurator"]


@dataclass(frozen=True)
class Job:
    """What a trainer works with."""

    config: TrainerConfig
    context: DistributedContext
    world: World
    task: TrainTask[Any, Any, Any, Any, Any]
    stream: DevicePackStream
    data: DataState
    checkpoints: Checkpoints | None
    schedule: JobSchedule
    model: nn.Module
    optimizer: OptimizerProtocol
    lr_scheduler: LRSchedulerProtocol


@dataclass(frozen=True)
class TrainingConfigurator:
    """Puts a job together: each provider is called once on every rank, an error in one of them is raised on all."""

    mesh: DeviceMeshParameters
    parameters: TrainerConfig
    task_provider: TrainTaskProvider
    model_provider: ModelProvider[Any]
    data_provider: DataProvider
    optimizer_provider: OptimizerProvider
    lr_scheduler_provider: LRSchedulerProvider

    def configure(self) -> "Trainer":
        """The trainer, ready to go on where the run's newest checkpoint says: the data stands there already, so that
        one which does not fit is refused here."""
        config = self.parameters
        context = self.mesh.build()
        if config.timeout is not None:
            context.set_timeout(config.timeout.init_timeout)
        world = data_parallel_world(context)
        torch.manual_seed(config.determinism.base_seed)  # torchdata's loader draws its order when it is made
        with together("the task provider"):
            task = self.task_provider(TrainTaskProviderContext(dist_context=context))
        with together("the data provider"):
            inner = self.data_provider(InitializeDataProviderContext(dist_context=context))
            stream = build_device_pack_stream(inner, context.current_device, config.data_prefetch.prefetch_factor)
        data = DataState(stream, world)
        checkpoints, done = None, 0
        if config.checkpointing is not None:
            folder = config.checkpointing.save_dir / config.run.name
            checkpoints = Checkpoints(folder, config.checkpointing.num_to_keep, world)
            if checkpoints.newest_step is not None:
                with together("loading the state of the data"):
                    done = data.load(checkpoints)
        with together("counting the steps"):
            schedule = JobSchedule(config.schedule, stream, done)
        check_agreed("numbers of steps", schedule.total_steps)
        if stream.is_elastic:  # a state of all ranks: one that has another read another dataset, or another order of it
            check_same("data", json.dumps(stream.state_dict()))
        model = self._model(context)
        with together("the optimizer provider"):
            optimizer = self.optimizer_provider(InitializeOptimizerStageContext(dist_context=context, model=model))
            check_parameters(optimizer, model)
        with together("the provider of the learning rate's schedule"):
            lr_context = InitializeLRSchedulerContext(
                dist_context=context, total_steps=schedule.total_steps, optimizer=optimizer
            )
            lr_scheduler = self.lr_scheduler_provider(lr_context)
        job = Job(config, context, world, task, stream, data, checkpoints, schedule, model, optimizer, lr_scheduler)
        return Trainer(job)

    def _model(self, context: DistributedContext) -> nn.Module:
        seed, device = self.parameters.determinism.base_seed, context.current_device
        torch.manual_seed(seed)  # the same on every rank
        with together("the model provider"):
            result = self.model_provider.initialize_model_stage(InitializeModelStageContext(dist_context=context))
            model: nn.Module = result.model
            if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
                model.to_empty(device=device)
                model.reset_parameters()  # type: ignore[operator]
            model.to(device)
        if context.mesh_params.is_distributed:
            check_same("parameters", parameters_of(model))
            by_mesh: Literal["ddp", "fsdp2"] = "fsdp2" if context.mesh_params.data_parallel_shard > 1 else "ddp"
            given = ParallelizeModelStageContext(
                dist_context=context, model=model, parallelism=self.parameters.parallelism or by_mesh
            )
            # Not together(): ranks speak with each other in it, and one that has failed must not wait for those who
            # wait for it.
            replaced = self.model_provider.parallelize_model_stage(given)
            model = model if replaced is None else replaced
        # The data may draw its order from the CPU's generator, which stays the same on every rank; dropout need not be.
        torch.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(derive_seed(seed, "rank", context.rank))
        return model


class Trainer:
    """A job that is ready to be trained; TrainingConfigurator.configure() makes it.

    schedule is how far the job is, model as it is trained, dist_context its processes: close() that when nothing is
    left to do.
    """

    def __init__(self, job: Job) -> None:
        self.dist_context = job.context
        self.schedule = job.schedule
        self.model = job.model
        self._job = job
        self._gradients = Gradients(
            job.model, job.context.current_device, job.config.gradient_manager, job.world.world_size
        )
        others = {"task": job.task, "lr_scheduler": job.lr_scheduler}
        self._trained = TrainedState(job.model, job.optimizer, others, job.world)
        self._needs_shared = needs_shared(job.model)
        self._ddp = next((one for one in job.model.modules() if isinstance(one, DistributedDataParallel)), None)
        self._stop = StopRequest()
        self._torn: str | None = None  # why nobody can go on from here
        self._pulled: Sequence[Any] | None = None  # a pack that others had none beside, for a next call of train()
        self._is_loaded = job.checkpoints is None or job.checkpoints.newest_step is None
        self._saved_step = job.schedule.current_step
        self._metrics = job.stream.metrics()

    def train(self) -> None:
        """Train from the newest checkpoint, or from nothing, to the job's last step.

        SIGTERM, and Ctrl-C once, let the step be finished and saved on every rank, then raise SystemExit(0), which ends
        the process as if all was well: whatever stands behind this call is for a job that is complete. Errors of one
        rank are raised on all, as RankFailedError where it was another one's. RuntimeError when the data ends early.

        Where it was stopped, or its data or a checkpoint failed, another call goes on behind the last whole step. After
        an error within a step it is a RuntimeError: configure() another trainer, which goes on from the checkpoint.
        """
        job, schedule, log = self._job, self.schedule, self.dist_context.logger
        if self._torn is not None:
            raise RuntimeError(
                f"{self._torn}, so this trainer cannot go on; configure() another one, which goes on from the newest "
                "checkpoint"
            )
        if not self._is_loaded and job.checkpoints is not None:
            self._trained.load(job.checkpoints)
            self._is_loaded = True
        if schedule.current_step >= schedule.total_steps:
            self._save()  # what a call before could not
            log.info("%s is complete: %d steps are done", job.config.run.name, schedule.current_step)
            return
        reports = Reports(job.config.logging, schedule, job.config.run.name, is_main=self.dist_context.is_main_process)
        with ExitStack() as behind, self._stop, job.stream, reports:
            if job.config.gc is not None and gc.isenabled():
                gc.disable()
                behind.callback(gc.enable)
            stopped = self._train(reports)
        if stopped:
            log.warning("stopped by %s behind step %d", self._stop.name or "another rank", schedule.current_step)
            raise SystemExit(0)
        job.task.finalize(FinalizeContext())

    def _train(self, reports: Reports) -> bool:
        """Whether it was stopped before the last step."""
        config, schedule, device = self._job.config, self.schedule, self.dist_context.current_device
        packs = iter(self._job.stream)
        goes_on = schedule.current_step > 0
        is_first = True
        while schedule.current_step < schedule.total_steps:
            # A stream may draw from the generators as it begins, such as torch's DataLoader; a model that goes on is to
            # draw what it would have.
            with fork_rng([device] if device.type == "cuda" else [], enabled=goes_on and is_first):
                pack = self._next(packs, reports)
            with self._stop.undisturbed():
                if pack is None:
                    self._save()
                    return True
                self._step(pack, reports)
                if config.checkpointing is not None and self._is_due(config.checkpointing.period_steps):
                    self._save()
            if config.timeout is not None and is_first:
                self.dist_context.set_timeout(config.timeout.step_timeout)
            is_first = False
        return False

    def _next(self, packs: Iterator[Sequence[Any]], reports: Reports) -> Sequence[Any] | None:
        """This rank's next pack, where all ranks have one; None where any was asked to stop. What was pulled then is
        not trained on, and the noted state is before it."""
        job, stop, done = self._job, self._stop, self.schedule.current_step
        error: Exception | None = None
        try:
            if self._pulled is None and stop.name is None:
                self._pulled = next(packs)
        except StopIteration:
            self._torn = "the data ended too early"
            error = RuntimeError(
                f"the data ended at step {done}, before total_steps={self.schedule.total_steps}; lower total_steps, or "
                "provide more data"
            )
        except Exception as raised:
            error = raised
        if error is not None:
            stop.wait_for_late_one()
        pack = () if self._pulled is None else self._pulled
        before, self._metrics = self._metrics, job.stream.metrics()
        met = self._metrics.since(before)
        status = [error is not None, stop.name is not None, len(pack), len(pack) ** 2, met.tokens]
        sums = torch.tensor(status, dtype=torch.int64)
        if job.world.world_size > 1:
            dist.all_reduce(sums)
        failed, stopping, count, squares, tokens = sums.tolist()
        if stopping:
            if error is not None:
                self.dist_context.logger.warning("asked to stop; the data said: %s", error)
            return None
        if failed:
            with together(f"the data of step {done + 1}"):
                if error is not None:
                    raise error
        if self._gradients.is_sharded and count**2 != job.world.world_size * squares:  # all equal, or it is less
            raise RuntimeError(
                f"a sharded model needs equally many microbatches on every rank, and this one has {len(pack)} of the "
                f"{count} of step {done + 1}; pad the data (drop_last=True, or padding=True), or take parallelism='ddp'"
            )
        reports.add(tokens, met.wait_s)
        job.data.note()
        self._pulled = None
        return pack

    def _step(self, pack: Sequence[Any], reports: Reports) -> None:
        job, schedule, gradients = self._job, self.schedule, self._gradients
        name = f"step {schedule.current_step + 1}"
        self._torn = f"{name} was broken off"
        with together(name, PATIENCE_S):
            self._forward_backward(pack)
        loss = gradients.finish()
        gradients.share_buffers()
        grad_norm = gradients.clip(job.config.gradient_clipping.max_norm)
        with together(f"the end of {name}", PATIENCE_S):
            job.optimizer.step()
            job.lr_scheduler.step()
            job.optimizer.zero_grad()
            gradients.clear()
            schedule.step()
            reports.step(loss, grad_norm)
            job.task.step_done(StepDoneContext(schedule=schedule, loss=loss, grad_norm=grad_norm))
            if job.config.gc is not None and self._is_due(job.config.gc.period_steps):
                gc.collect()
        self._torn = None

    def _forward_backward(self, pack: Sequence[Any]) -> None:
        task = self._job.task
        repeats = getattr(pack, "num_repeats", [0] * len(pack))  # of a PaddedPack
        weights = getattr(pack, "loss_weights", [None] * len(pack))  # of a TokenPack
        inputs = [
            task.build_forward_inputs(BuildForwardInputsContext(batch=batch, num_repeats=int(number)))
            for batch, number in zip(pack, repeats, strict=True)
        ]
        with nullcontext() if self._ddp is None else self._ddp.no_sync():
            for given, weight in zip(inputs, weights, strict=True):
                shared = (given.shared,) if self._needs_shared or given.shared is not None else ()
                output = self.model(given.input, *shared)
                loss = task.compute_loss(
                    ComputeLossContext(pipeline_results=output, state=given.state, schedule=self.schedule)
                )
                self._gradients.backward(loss.loss, weight if loss.loss_weight is None else loss.loss_weight, output)

    def _is_due(self, period: StepActionPeriod) -> bool:
        return self.schedule.should_do_action(period, True, is_post_step_action=True)

    def _save(self) -> None:
        """Save what is not saved yet."""
        job, step = self._job, self.schedule.current_step
        if job.checkpoints is not None and step != self._saved_step:
            with together(f"the states of step {step}", PATIENCE_S):
                state = {**job.data.save(step), **self._trained.save()}
            job.checkpoints.save(step, state)
            self._saved_step = step
