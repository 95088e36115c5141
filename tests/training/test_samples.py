"""The two samples of d9d's page on data loading: as they stand there but for their imports, and no sample lost."""

import importlib
import json
import re
import sys
from itertools import chain
from pathlib import Path

import datasets
import pytest

import headrace
from headrace import (
    AutoDataProvider,
    FixedCountMicrobatchPacker,
    InitializeDataProviderContext,
    JobSchedule,
    JobScheduleConfig,
    TrainingConfigurator,
)
from headrace.errors import OptionError, OrderError
from training.ranks import Place

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "tests" / "golden" / "d9d" / "data-loading.txt").read_text(encoding="utf-8")
IMPORTS = re.compile(r"^(?:from [\w.]+ import (?:\([^)]*\)|.*)|import .*)\n+", re.MULTILINE)
SAMPLES = 264  # more than the first sample's global batch


def without_imports(text):
    return IMPORTS.sub("", text).strip()


def as_pattern(text):
    """The text as a pattern in which whatever is left open (...) may be anything on its line."""
    return ".+".join(re.escape(part) for part in text.split("..."))


@pytest.mark.parametrize(("number", "name"), [(0, "pretrain_auto"), (1, "pretrain_custom")])
def test_an_example_is_the_page_s_sample_with_its_imports_changed_and_its_gaps_filled(number, name):
    block = re.split(r"^(?=import dataclasses$)", PAGE, flags=re.MULTILINE)[1 + number]
    example = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    _, _, example = example[3:].partition('"""\n')
    assert "d9d" not in example
    assert re.fullmatch(as_pattern(without_imports(block)), without_imports(example))
    names = set(re.findall(r"^(?:from|import) ([\w.]+)", example, re.MULTILINE))
    others = {"collections.abc", "dataclasses", "datasets", "pydantic", "tokenizers", "torch", "typing"}
    assert names - others - {"torch.utils.data", "torchdata.stateful_dataloader"} == {
        "examples.pretrain_pieces",
        "headrace",
    }


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """load(name) -> the module of the example, in a folder with its dataset."""
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("samples")
    with patch.context():
        patch.chdir(folder)
        patch.syspath_prepend(ROOT)
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
        for name in ("RANK", "WORLD_SIZE"):
            patch.delenv(name, raising=False)
        datasets.disable_progress_bars()
        importlib.import_module("examples.pretrain_pieces").make_data(SAMPLES)

        def load(name):
            return importlib.import_module(f"examples.{name}")

        yield load
        for name in [name for name in sys.modules if name.startswith("examples.pretrain")]:
            del sys.modules[name]
    patch.undo()


class FirstOf(Place):
    """A rank that comes to the data behind all others."""

    def main_process_first(self):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


def seen(provider, rank, world_size):
    """The packs of a rank, as lists of microbatches of sample numbers."""
    stream = provider(InitializeDataProviderContext(dist_context=FirstOf(rank, world_size)))
    packs = [[microbatch.input_ids[:, 0].tolist() for microbatch in pack] for pack in stream]
    assert len(packs) == stream.total_steps
    return packs


def all_of(packs):
    return sorted(chain(*chain(*packs)))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_second_sample_serves_every_sample_once_without_a_seed_on_any_number_of_ranks(examples, ranks, workers):
    custom = examples("pretrain_custom")
    config = custom.DataConfig(
        dataset="my/dataset",
        split="train",
        tokenizer="my/tokenizer.json",
        presort_buffer_size=60,
        global_batch_size=24,
        microbatch_size=3,
        num_workers=workers,
    )
    packs = [seen(custom.ProjectDataProvider(config), rank, ranks) for rank in range(ranks)]
    assert {len(own) for own in packs} == {11}
    assert {len(pack) for own in packs for pack in own} == {8 // ranks}
    assert all_of(chain(*packs)) == list(range(SAMPLES))


def test_where_sizes_do_not_divide_the_second_sample_repeats_nothing_but_padding(examples):
    custom = examples("pretrain_custom")
    config = custom.DataConfig(
        dataset="my/dataset",
        split="train",
        tokenizer="my/tokenizer.json",
        presort_buffer_size=60,
        global_batch_size=7,
        microbatch_size=1,
        num_workers=0,
    )
    packs = [seen(custom.ProjectDataProvider(config), rank, 7) for rank in range(7)]
    served = all_of(chain(*packs))
    last = packs[SAMPLES % 7 - 1][-1][0][0]  # the last sample in the order, which is what pads
    assert sorted(set(served)) == list(range(SAMPLES))
    assert {number: served.count(number) for number in served if served.count(number) > 1} == {
        last: 1 + 7 - SAMPLES % 7
    }


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_the_first_sample_trains_every_sample_once_on_a_plain_hugging_face_dataset(examples, workers):
    pieces = examples("pretrain_pieces")
    auto = examples("pretrain_auto")
    sizes = {"global_batch_size": 24, "microbatch_size": 3, "num_workers": workers}
    config = auto.AutoDataConfig.model_validate(auto.provider._config.model_dump() | sizes)
    provider = AutoDataProvider(auto.build_dataset, auto.collate, config)
    for ranks in (1, 2, 4):
        packs = [seen(provider, rank, ranks) for rank in range(ranks)]
        assert all_of(chain(*packs)) == list(range(SAMPLES))
        steps = [sorted(chain(*chain(*step))) for step in zip(*packs, strict=True)]
        assert steps == [sorted(chain(*pack)) for pack in seen(provider, 0, 1)], "ranks share the steps of one order"
    trainer = TrainingConfigurator(
        mesh=auto.mesh,
        parameters=auto.parameters(f"auto-{workers}"),
        model_provider=auto.LanguageModelProvider(),
        task_provider=auto.build_task,
        data_provider=provider,
        optimizer_provider=auto.build_optimizer,
        lr_scheduler_provider=auto.build_lr_scheduler,
    ).configure()
    path = pieces.RUNS / "seen-by-rank-0.jsonl"
    path.unlink(missing_ok=True)
    trainer.train()
    assert trainer.schedule.current_step == trainer.schedule.total_steps == 11
    assert sorted(chain(*map(json.loads, path.read_text().splitlines()))) == list(range(SAMPLES))


def test_a_dataset_too_small_for_one_step_is_refused_rather_than_complete_at_once(examples):
    auto = examples("pretrain_auto")
    config = auto.AutoDataConfig(global_batch_size=300, microbatch_size=4)
    provider = AutoDataProvider(auto.build_dataset, auto.collate, config)
    stream = provider(InitializeDataProviderContext(dist_context=FirstOf()))
    with pytest.raises(OrderError, match="264 samples do not fill one global batch of 300"):
        JobSchedule(JobScheduleConfig(), stream)
    packer = FixedCountMicrobatchPacker([1, 2, 3], microbatches_per_step=4)
    with pytest.raises(OptionError, match=r"total_steps=0 .*the data does not fill one step"):
        JobSchedule(JobScheduleConfig(), packer)


NAMES = """
PyTree TensorTree ScalarTree CollateFn MicrobatchPack DataLoaderProtocol MicrobatchPackStream OptimizerProtocol
LRSchedulerProtocol tree_flatten tree_unflatten tree_leaves tree_map tree_map_only tree_leaves_with_path PyTreeSpec
DatasetImplementingSortKeyProtocol BufferSortedDataset ShardIndexingMode ShardedDataset shard_dataset_data_parallel
PaddingSide1D pad_stack_1d TokenPoolingType token_pooling_mask_from_attention_mask FixedCountMicrobatchPacker
PinMemoryMicrobatchPackStream num_microbatches_for_global_batch DatasetFactory DataProvider AutoDataConfig
AutoDataProvider InitializeDataProviderContext DataParallelMicrobatchPackStream build_device_pack_stream
DeviceMeshParameters DistributedContext TrainingConfigurator Trainer JobSchedule TrainTask TrainTaskProvider
TrainTaskProviderContext BuildForwardInputsContext BuildForwardInputsResult ComputeLossContext ComputeLossResult
ModelProvider InitializeModelStageContext InitializeModelStageResult ParallelizeModelStageContext OptimizerProvider
InitializeOptimizerStageContext LRSchedulerProvider InitializeLRSchedulerContext TrainerConfig RunConfig
JobScheduleConfig DataPrefetchConfig CheckpointingConfig DeterminismConfig GradientClippingConfig JobLoggerConfig
GarbageCollectionConfig GradientManagerConfig TimeoutConfig
"""


def test_every_name_of_d9d_s_data_stack_and_of_the_loop_that_takes_it_comes_from_headrace_and_is_in_the_guide():
    guide = (ROOT / "docs" / "from-d9d.md").read_text(encoding="utf-8")
    for name in NAMES.split():
        assert getattr(headrace, name) is not None
        assert name in headrace.__all__
        of_the_loop = name.endswith(("Context", "Result", "Config", "Provider", "ProviderContext"))
        assert of_the_loop or f"`{name}" in guide, f"docs/from-d9d.md does not mention {name}"
