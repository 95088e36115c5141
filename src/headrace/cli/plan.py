"""`headrace plan`: which samples a run will see, in which step, and how well they are shuffled."""

import math
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.terminal import place, say

if TYPE_CHECKING:
    from headrace.views import Origins, Plan

__all__ = ["EXAMPLE", "plan"]

EXAMPLE = (
    "Example: `headrace plan books web --weights books=3,web=1 --global-batch-size 256 --world-size 8 --step 1000`"
)
_SHARD_CACHE = 10  # the data over this is what a reader keeps, unless told otherwise


class ShuffleName(StrEnum):
    """How each dataset is shuffled."""

    no = "none"
    everywhere = "global"
    pooled = "pooled"


def plan(  # noqa: PLR0913 -- each is an option of the command
    directories: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR...", help="Datasets, by directory or URL; several are a mixture, named by their folders."
        ),
    ],
    global_batch_size: Annotated[
        int, typer.Option(metavar="ROWS", min=1, help="Rows a step, for all ranks together.")
    ] = 1,
    world_size: Annotated[int, typer.Option(metavar="RANKS", min=1, help="Ranks that share them.")] = 1,
    drop_last: Annotated[bool, typer.Option(help="Whether rows that fill no step are dropped.")] = True,
    epoch: Annotated[int, typer.Option(metavar="NUMBER", min=0, help="Which epoch, from 0.")] = 0,
    step: Annotated[
        int | None, typer.Option(metavar="NUMBER", min=0, help="Print the samples of this step, from 0, rank by rank.")
    ] = None,
    seen: Annotated[
        str | None, typer.Option(metavar="NAME:ITEM", help="Print the steps of the epoch that have this sample.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="SEED", help="Of every shuffle, mixture and packing.")] = 0,
    shuffle: Annotated[
        ShuffleName, typer.Option(metavar="HOW", help="global, pooled (a few shards at a time) or none.")
    ] = ShuffleName.everywhere,
    pool_items: Annotated[
        int | None, typer.Option(metavar="SAMPLES", min=1, help="Samples of a pool; by default four shards'.")
    ] = None,
    lanes: Annotated[int, typer.Option(metavar="LANES", min=1, help="Lanes of a pooled shuffle.")] = 1,
    weights: Annotated[
        str | None,
        typer.Option(metavar="NAME=W,...", help="Of a mixture, or just W,... in order; by default by lengths."),
    ] = None,
    sequence_length: Annotated[
        int | None, typer.Option(metavar="ELEMENTS", min=1, help="Elements of a window, for streams.")
    ] = None,
    pack: Annotated[
        int | None, typer.Option(metavar="TOKENS", min=1, help="Pack documents into rows of so many tokens.")
    ] = None,
    quality: Annotated[bool, typer.Option("--quality", help="How well pools of several sizes shuffle.")] = False,
    cache_bytes: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES", min=0, help="For --quality: what a reader keeps; by default a tenth of the data."
        ),
    ] = None,
) -> None:
    """Say which samples a run will see, and when, without reading one.

    The order is the loader's for the same datasets, sizes and seed: `ShuffledDataset`, `MixedDataset` where there are
    several, `PackedDataset` with --pack. StreamingDataset has another one, which Plan(dataset, ...) tells in Python.
    Samples are printed as NAME:ITEM, the folder and the number in its dataset.

    --quality prints, for each dataset: how far pools of some sizes are from an ideal shuffle (0; none at all is 1), and
    what a reader that fetches whole shards, and keeps the last ones, fetches an epoch. --epoch does not matter there.
    """
    from headrace.errors import InputError
    from headrace.inspection import printable
    from headrace.views import PackedDataset, Plan

    try:
        sources = {name: _opened(path, sequence_length) for name, path in _named(directories).items()}
        ordered = _ordered(sources, shuffle.value, seed, pool_items, lanes, weights)
        if pack is not None:
            ordered = PackedDataset(ordered, pack, seed=seed)
        planned = Plan(ordered, global_batch_size, world_size, drop_last=drop_last)
        only = next(iter(sources)) if len(sources) == 1 else None
        lines = list(_lines(planned, sources, epoch))
        if step is not None:
            lines += _step_lines(planned, step, epoch, only)
        if seen is not None:
            lines.append(_seen_line(planned, seen, epoch, only, sources))
        if quality:
            lines += _quality_lines(sources, global_batch_size, cache_bytes, (lanes, seed))
    except IndexError as error:  # a step, an item or an epoch that is not there
        raise InputError(", ".join(directories), str(error)) from error
    except TypeError as error:
        if pack is None:
            raise
        raise InputError(", ".join(directories), f"cannot be packed: {error}") from error
    for line in lines:
        typer.echo(printable(line))  # names of folders, and what stands in indexes


def _named(directories: Sequence[str]) -> dict[str, str | Path]:
    """Each directory or URL under its folder's name, or as it was given where two are called alike."""
    places = [place(directory) for directory in directories]
    names = [
        found.resolve().name if isinstance(found, Path) else found.rstrip("/").rpartition("/")[2] for found in places
    ]
    if len(set(names)) < len(names):
        names = list(directories)
    if len(set(names)) < len(names):
        raise typer.BadParameter("a directory is named twice", param_hint="DIR")
    return dict(zip(names, places, strict=True))


def _opened(directory: str | Path, sequence_length: int | None) -> Any:
    """The dataset there, as a loader reads it: windows of a stream, documents or samples."""
    from headrace.datasets import DocumentStorage
    from headrace.errors import InputError
    from headrace.inspection import found_in
    from headrace.inspection.samples import Samples

    found = found_in(directory)
    if isinstance(found, Samples):
        return found.dataset
    if not isinstance(found, DocumentStorage) and sequence_length is None:
        found.open()  # says why where nothing is there
        raise InputError(str(directory), "is a stream, which has no samples of its own; pass --sequence-length")
    dataset: Any = found.dataset() if isinstance(found, DocumentStorage) else found.dataset(sequence_length or 1)
    try:
        dataset.open()
    except ValueError as error:
        raise InputError(str(directory), str(error)) from error
    return dataset


def _ordered(
    sources: dict[str, Any], shuffle: str, seed: int, pool_items: int | None, lanes: int, weights: str | None
) -> Any:
    from headrace.planning import derive_seed
    from headrace.views import ShuffledDataset

    if (pool_items is not None or lanes != 1) and shuffle != "pooled":
        raise typer.BadParameter("pools and lanes are for --shuffle pooled", param_hint="--shuffle")
    if len(sources) == 1:
        if weights is not None:
            raise typer.BadParameter("one dataset is no mixture", param_hint="--weights")
        (dataset,) = sources.values()
        if shuffle == "none":
            return dataset
        return ShuffledDataset(dataset, seed, shuffle, pool_items=pool_items, lanes=lanes)
    from headrace.views import MixedDataset

    if shuffle == "none":
        raise typer.BadParameter("a mixture shuffles its datasets", param_hint="--shuffle")
    if shuffle == "pooled":
        sources = {
            name: ShuffledDataset(
                dataset, derive_seed(seed, "source", name), "pooled", pool_items=pool_items, lanes=lanes
            )
            for name, dataset in sources.items()
        }
    return MixedDataset(sources, _weights(weights, list(sources)), seed)


def _weights(text: str | None, names: Sequence[str]) -> dict[str, float] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    pairs = [part.rpartition("=") for part in parts]
    if not any(equals for _, equals, _ in pairs):
        if len(pairs) != len(names):
            problem = f"{len(pairs)} weights for {len(names)} datasets ({', '.join(names)})"
            raise typer.BadParameter(problem, param_hint="--weights")
        pairs = [(name, "=", weight) for name, (_, _, weight) in zip(names, pairs, strict=True)]
    weights: dict[str, float] = {}
    for name, equals, weight in pairs:
        try:
            number = float(weight)
        except ValueError:
            number = math.nan
        if not equals or name in weights or math.isnan(number):
            raise typer.BadParameter(f"{name + equals + weight!r} is no NAME=W", param_hint="--weights")
        weights[name] = number
    return weights


def _lines(planned: "Plan", sources: dict[str, Any], epoch: int) -> Iterator[str]:
    """Sizes, counts and steps."""
    from headrace.views import PackedDataset

    width = max(map(len, sources))
    for name, dataset in sources.items():
        yield f"{name:<{width}}  {len(dataset):,} samples in {len(dataset.shard_items):,} shards"
    dataset = planned.dataset
    what = "samples"
    below = dataset
    if isinstance(dataset, PackedDataset):
        what, below = "rows", dataset.base
    if hasattr(below, "sources"):
        yield from str(below.report((epoch + 1) * len(below))).splitlines()
    if isinstance(dataset, PackedDataset):
        report = dataset.report(epoch)
        yield (
            f"packed: {report['documents']:,} documents, {report['tokens']:,} tokens, in {report['rows']:,} rows of "
            f"{dataset.sequence_length:,} that are {report['utilisation']:.1%} full"
        )
    rows, steps = planned.rows_in_epoch(epoch), planned.steps_in_epoch(epoch)
    left = rows - steps * planned.global_batch_size
    rest = (
        f"; {left:,} {'is' if left == 1 else 'are'} left over and dropped"
        if left > 0
        else "; the last step is short"
        if left < 0
        else ""
    )
    local = planned.global_batch_size // planned.world_size
    each = f" ({local:,} for each of {planned.world_size:,} ranks)" if planned.world_size > 1 else ""
    noun = "step" if steps == 1 else "steps"
    yield f"epoch {epoch}: {rows:,} {what}, {steps:,} {noun} of {planned.global_batch_size:,}{each}{rest}"


def _step_lines(planned: "Plan", step: int, epoch: int, only: str | None) -> Iterator[str]:
    """The samples of a step, a line a rank."""
    ranks = planned.samples_of_step(step, epoch)
    yield f"epoch {epoch}, step {step}:"
    for rank, rows in enumerate(ranks):
        if isinstance(rows, list):
            text = " ".join(f"[{_pairs(row, only)}]" for row in rows)
        else:
            text = _pairs(rows, only)
        yield f"  rank {rank}: {text or '(nothing)'}"


def _pairs(samples: "Origins", only: str | None) -> str:
    return " ".join(f"{source or only}:{item}" for source, item in samples)


def _seen_line(planned: "Plan", seen: str, epoch: int, only: str | None, sources: dict[str, Any]) -> str:
    name, colon, number = seen.rpartition(":")
    if not number.isdecimal() or (colon and name not in sources) or (not colon and only is None):
        raise typer.BadParameter(f"{seen!r} is no NAME:ITEM of {', '.join(sources)}", param_hint="--seen")
    steps = planned.when_seen(None if only is not None else name, int(number), epochs=[epoch])
    shown = f"{name or only}:{number}"
    if not steps:
        return f"{shown} is not seen in epoch {epoch}"
    return f"{shown} is seen in epoch {epoch} at step {', '.join(str(step) for _, step in steps)}"


def _quality_lines(
    sources: dict[str, Any], global_batch_size: int, cache_bytes: int | None, order: tuple[int, int]
) -> Iterator[str]:
    from headrace.inspection import size_text
    from headrace.inspection.quality import Layout, shuffle_qualities

    lanes, seed = order
    for name, dataset in sources.items():
        if len(dataset) < 2:
            say(f"{name}: nothing to shuffle in {len(dataset)} sample{'s' * (len(dataset) != 1)}")
            continue
        num_bytes = int(dataset.describe()["total_bytes"])
        kept = num_bytes // _SHARD_CACHE if cache_bytes is None else cache_bytes
        yield f"{name}: batches of {max(2, global_batch_size):,}; whole shards are fetched, {size_text(kept)} are kept"
        yield "  shuffle    samples a pool   distance from ideal   fetched an epoch"
        layout = Layout(dataset.shard_items, num_bytes, kept, global_batch_size)
        for found in shuffle_qualities(layout, lanes=lanes, seed=seed):
            pool = "" if found.pool_items is None else f"{found.pool_items:,}"
            times = found.fetched_bytes / max(1, num_bytes)
            yield (
                f"  {found.order:<9} {pool:>15} {found.distance:>21.3f}   "
                f"{size_text(found.fetched_bytes)} ({times:,.1f} x)"
            )
