"""A run goes on while its mixture is another: weights were changed, sources joined or left.

    state     position 70,000 | mixture: digest, plan text, seed, ...      the draws of each source before it follow
    dataset   other weights, other sources
    resumed   the same dataset, whose mixture begins at 70,000 with those draws counted; what left is kept in the count

Rows of packs or batches were planned a window at a time. A window that is being read is finished as it was planned,
from the mixture of before, and the new one begins with the next window.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np

from headrace.errors import OrderError, StateError, StateMismatchError
from headrace.planning import Cursor
from headrace.planning.recipe import Recipe, decode_counts, decode_departed, encode_counts
from headrace.views.mixed import DATA_DIGITS, MixedDataset
from headrace.views.protocol import Int64s, Setting, is_view, is_windowed, with_base

__all__ = ["changed_from_here", "continued_as_saved", "first_step", "mixture_settings"]

_LOGGER = logging.getLogger("headrace")
_OWN = ("mixture", "epoch_size")


def mixture_settings(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """Those of the settings that a mixture has."""
    return {name: value for name, value in settings.items() if name.startswith("mixture") or name in _OWN}


def first_step(dataset: Any) -> int:
    """Where the order of dataset begins: 0, unless its mixture was changed. For packs and batches: the first window,
    counted over all epochs; else the first endless position."""
    mixture = dataset.base if is_windowed(dataset) else dataset
    if not isinstance(mixture, MixedDataset) or mixture.first_position == 0:
        return 0
    first = mixture.first_position
    if not is_windowed(dataset):
        return first
    epoch, index = divmod(first - isinstance(mixture, _Finishing), len(mixture))
    return int(epoch * dataset.num_windows + min(index // dataset.window, dataset.num_windows - 1))


def continued_as_saved(dataset: Any, saved: Mapping[str, Setting], was: Any = None) -> Any:
    """dataset with the change of its mixture that the saved settings tell of; dataset itself where they tell of none.

    Whether the rest of the settings fits is not looked at.
    """
    start = saved.get("mixture_from")
    mixture = _mixture_under(dataset)
    if start is None or mixture is None or mixture.first_position:
        return dataset
    if saved.get("mixture") != mixture.settings["mixture"]:
        return dataset  # this is another one, and its counts are of other sources
    counts = _counts(saved, "mixture_drawn")
    if not _is_count(start) or len(counts) != len(mixture.recipe.names):
        raise StateError(f"the state is damaged: its mixture_from is {start!r}, with {len(counts)} counts")
    drawn = dict(zip(mixture.recipe.names, counts, strict=True))
    drawn |= decode_departed(_text(saved, "mixture_departed"))
    if "mixture_plan" in saved:
        drawn |= dict(_decoded(_text(saved, "mixture_plan"), start, counts).departed)
    later = mixture.continued(start, drawn)
    if "mixture_earlier" in saved:
        later = _Finishing.of(later, _earlier(saved, was))
    return later if mixture is dataset else with_base(dataset, later)


def changed_from_here(
    dataset: Any, cursor: Cursor, saved: Mapping[str, Setting], was: Any = None
) -> tuple[Any, Cursor]:
    """dataset with its mixture beginning at the cursor, where the saved settings say what its sources have given; and
    the cursor in it.

    was is the dataset as it was, which is needed where its mixture had too many sources for a state to tell.
    OrderError where there is no mixture to change, or it is not outermost or directly below packs or batches;
    StateError where the state does not tell what was drawn.
    """
    mixture = _mixture_under(dataset)
    if mixture is None:
        raise OrderError(
            "change='from_here' is for a mixture, by itself or directly below packs or batches: there what was drawn "
            f"so far is a count a source. This order is a {type(dataset).__name__}; set_epoch() starts an epoch of it"
        )
    size = saved.get("epoch_size")
    if not _is_count(size):
        raise StateError("the state holds no mixture that could have changed")
    before = _saved_recipe(saved, was)
    _check_kept(mixture, before, saved, was)
    if mixture is dataset:
        position = cursor.epoch * size + cursor.position
        if not _is_count(position + size):
            raise StateError(f"the state's epoch is {cursor.epoch}; positions in it are beyond what can be counted")
        mixture = mixture.continued(position, before.counts(position))
        if len(mixture) == 0:
            raise OrderError("the mixture has no samples to go on with")
        _LOGGER.info("the mixture goes on from position %d with other settings", position)
        return mixture, Cursor(*divmod(position, len(mixture)))
    if len(mixture) != size:
        raise OrderError(
            f"an epoch of the mixture had {size} samples and has {len(mixture)} now; pass epoch_size={size}, so that "
            f"the windows of {type(dataset).__name__} stay where they were"
        )
    begin, _ = dataset.window_span(cursor.epoch, cursor.window)
    # A change that comes with the next window has not begun: this one takes its place.
    earlier = _earlier(saved, was) if begin < before.start and "mixture_earlier" in saved else None
    return _changed_windows(dataset, mixture, cursor, before, earlier), cursor


def _changed_windows(
    dataset: Any, mixture: MixedDataset, cursor: Cursor, before: Recipe, earlier: Recipe | None
) -> Any:
    """dataset over the mixture, which begins with the next window; earlier is what this one was begun with, if that was
    before the recipe of before."""
    begin, end = dataset.window_span(cursor.epoch, cursor.window)
    finishing = before if cursor.row else None
    position = end if cursor.row else begin
    if begin < before.start:
        finishing, position = earlier, before.start
        if earlier is None or end != before.start or begin < earlier.start:
            raise OrderError(
                f"the mixture was changed at position {before.start} and cannot be again before the window that ends "
                "there is through"
            )
    later = mixture.continued(position, before.counts(position))
    if finishing is not None:
        later = _Finishing.of(later, finishing)
        # All of the window, now: a source that left and is still needed is refused before anything is read.
        later.draws(np.arange(begin, finishing.plan().reach(end), dtype=np.int64))
    _LOGGER.info("the mixture goes on from position %d with other settings", position)
    return with_base(dataset, later)


class _Finishing(MixedDataset):
    """A mixture of which the positions before its first one are those of the mixture of before, so that a window which
    was begun with that can be finished."""

    earlier: Recipe

    @classmethod
    def of(cls, later: MixedDataset, earlier: Recipe) -> "_Finishing":
        """later, with the recipe of before for the positions before it."""
        finishing = cls.__new__(cls)
        finishing.__setstate__({**later.__getstate__(), "earlier": earlier})
        return finishing

    def continued(self, position: int, drawn: Mapping[str, int]) -> MixedDataset:
        """As MixedDataset says; the mixture of before is over by then."""
        plain = MixedDataset.__new__(MixedDataset)
        plain.__setstate__({name: value for name, value in self.__getstate__().items() if name != "earlier"})
        return plain.continued(position, drawn)

    def draws(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """As MixedDataset says; OrderError, too, for a source that left."""
        given = np.asarray(positions)
        if given.size == 0 or int(given.min()) >= self.first_position:
            return super().draws(given)
        old = given < self.first_position
        numbers, draws = np.empty(len(given), np.int64), np.empty(len(given), np.int64)
        found, draws[old] = self.earlier.plan().draws(given[old])
        here = {name: number for number, name in enumerate(self.names)}
        for number in sorted(set(found.tolist())):
            name = self.earlier.names[number]
            if name not in here:
                raise OrderError(
                    f"source {name!r} left the mixture, but is still needed up to position {self.first_position}, "
                    "where the window ends that was begun with it; keep it with weight 0 until then"
                )
        numbers[old] = np.array([here.get(name, -1) for name in self.earlier.names], np.int64)[found]
        numbers[~old], draws[~old] = super().draws(given[~old])
        return numbers, draws

    @property
    def settings(self) -> dict[str, Setting]:
        """Those of the mixture, and the recipe of before."""
        earlier = self.earlier
        settings = {**super().settings, "mixture_earlier": earlier.encoded() or earlier.digest()}
        if earlier.start:
            settings["mixture_earlier_from"] = earlier.start
            settings["mixture_earlier_drawn"] = encode_counts(earlier.drawn)
        return settings


def _mixture_under(dataset: Any) -> MixedDataset | None:
    """The mixture that dataset is, or stands on with its windows."""
    mixture = dataset.base if is_windowed(dataset) else dataset
    return mixture if isinstance(mixture, MixedDataset) else None


def _check_kept(mixture: MixedDataset, before: Recipe, saved: Mapping[str, Setting], was: Any) -> None:
    """Refuse sources of the same name that are other data now, and another seed: what they gave so far would be
    samples that are still to come, and the other way round."""
    if saved.get("mixture_seed") != mixture.seed:
        raise StateMismatchError({"mixture_seed": (saved.get("mixture_seed"), mixture.seed)})
    now = dict(zip(mixture.recipe.names, mixture.recipe.lengths, strict=True))
    data, data_now = _data_of(saved, before.names, was), mixture.source_digests()
    for name, length in zip(before.names, before.lengths, strict=True):
        if name not in now:
            continue
        if now[name] != length:
            problem = f"had {length} samples and has {now[name]} now"
        elif data.get(name, data_now[name]) != data_now[name]:
            problem = "has other data or another order now"
        else:
            continue
        raise OrderError(
            f"source {name!r} {problem}, so what it has given does not tell what is left of it; bring it back, "
            "or give it another name, and it begins anew"
        )


def _data_of(saved: Mapping[str, Setting], names: Sequence[str], was: Any) -> dict[str, str]:
    """The digest of each source's data; none where nobody tells."""
    if "mixture_data" in saved:
        text = _text(saved, "mixture_data")
        if len(text) != DATA_DIGITS * len(names):
            raise StateError(f"the state is damaged: its mixture_data is not for {len(names)} sources")
        return {name: text[DATA_DIGITS * k : DATA_DIGITS * (k + 1)] for k, name in enumerate(names)}
    return _mixture_of(was).source_digests() if "mixture_plan" not in saved else {}  # which _saved_recipe() checked


def _saved_recipe(saved: Mapping[str, Setting], was: Any) -> Recipe:
    """The recipe of the mixture that the settings were saved with."""
    start, counts = saved.get("mixture_from", 0), _counts(saved, "mixture_drawn")
    if not _is_count(start):
        raise StateError(f"the state is damaged: its mixture_from is {start!r}")
    if "mixture_plan" in saved:
        recipe = _decoded(_text(saved, "mixture_plan"), start, counts)
    else:
        departed = decode_departed(_text(saved, "mixture_departed"))
        recipe = _recipe_of(was, {name: saved.get(name) for name in ("mixture", "mixture_seed", "epoch_size")})
        recipe = replace(recipe, start=start, drawn=tuple(counts), departed=departed)
    if len(counts) != (len(recipe.names) if "mixture_from" in saved else 0):
        raise StateError(f"the state is damaged: it has {len(counts)} counts for {len(recipe.names)} sources")
    return recipe


def _earlier(saved: Mapping[str, Setting], was: Any) -> Recipe:
    """The recipe that a window is finished with."""
    text, start = _text(saved, "mixture_earlier"), saved.get("mixture_earlier_from", 0)
    counts = _counts(saved, "mixture_earlier_drawn")
    if not _is_count(start):
        raise StateError(f"the state is damaged: its mixture_earlier_from is {start!r}")
    if len(text) != 32:  # else a digest
        return _decoded(text, start, counts)
    recipe = replace(_recipe_of(was, {}), start=start, drawn=tuple(counts))
    if recipe.digest() != text:
        raise StateError("was= is not the dataset that the state was saved with before its mixture changed")
    return recipe


def _mixture_of(was: Any) -> MixedDataset:
    """The mixture in was; StateError where there is none."""
    while is_view(was) or is_windowed(was):
        was = was.base
    if not isinstance(was, MixedDataset):
        raise StateError(
            "the mixture had too many sources for the state to tell what they have given: pass was=, the dataset as it "
            "was when the state was saved"
        )
    return was


def _recipe_of(was: Any, expected: Mapping[str, Setting]) -> Recipe:
    """The recipe of the mixture in was, if its settings are these."""
    mixture = _mixture_of(was)
    settings = mixture.settings
    differing = [name for name, value in expected.items() if settings.get(name) != value]
    if differing:
        raise StateError(f"was= is not the dataset that the state was saved with: {', '.join(differing)} differ")
    return mixture.recipe


def _counts(saved: Mapping[str, Setting], name: str) -> list[int]:
    counts = decode_counts(_text(saved, name))
    if not all(map(_is_count, counts)):
        raise StateError(f"the state is damaged: its {name} counts beyond 2**62")
    return counts


def _decoded(text: str, start: int, counts: Sequence[int]) -> Recipe:
    recipe = Recipe.decoded(text, start, counts)
    if not _is_count(start + 2 * recipe.epoch_size) or (recipe.names and not recipe.epoch_size):
        raise StateError(f"the state is damaged: its mixture has epochs of {recipe.epoch_size} samples")
    return recipe


def _text(saved: Mapping[str, Setting], name: str) -> str:
    text = saved.get(name, "")
    if not isinstance(text, str):
        raise StateError(f"the state is damaged: its {name} is {text!r}")
    return text


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
