"""d9d's own Trainer on the CPU, fed by d9d's provider and by Headrace's; and Headrace's, fed by d9d's."""

import json
from itertools import chain
from pathlib import Path

import pytest

from interop.d9d_job import NUM_SAMPLES, document_lengths

pytestmark = pytest.mark.interop
GOLDEN = Path(__file__).parents[1] / "golden" / "d9d"
OURS = ("headrace", "headrace's packer", "headrace's loader")
HARD = {"num_workers": 2, "shuffle": True, "prefetch": 2}


def ids(microbatches):
    """The samples of all ranks' microbatches, in order of size."""
    return sorted(chain.from_iterable(chain.from_iterable(microbatches)))


@pytest.fixture(scope="module")
def golden():
    """What d9d recorded of the job: microbatches and losses of the fresh run with its defaults."""
    runs = json.loads((GOLDEN / "trainer.json").read_text())["runs"]
    run = next(one for one in runs if one["run"] == "fresh" and one["config"] == {})
    return [run["microbatches"]], [loss for _, loss, _ in run["steps"]]


@pytest.fixture(scope="module")
def golden_of_two():
    """The same of two ranks."""
    runs = json.loads((GOLDEN / "trainer_dp.json").read_text())["runs"]
    run = next(one for one in runs if one["dp"] == 2)
    return run["microbatches_by_rank"], [loss for _, loss, _ in run["steps"]]


ALONE = [
    {"name": "d9d", "provider": "d9d"},
    *({"name": name, "provider": name} for name in OURS),
    {"name": "whole", "provider": "headrace", **HARD},
    {"name": "cut", "out": "cut", "provider": "headrace", "total_steps": 5, **HARD},
    {"name": "rest", "out": "cut", "provider": "headrace", "shuffle": True},  # no workers now, nothing ahead
    {"name": "two epochs", "provider": "headrace", "shuffle": True, "epochs": 2, "prefetch": 1},
    {"name": "token budget", "provider": "headrace's token budget"},
]
GUESTS = [
    {"name": "d9d", "provider": "d9d"},
    {"name": "headrace", "provider": "headrace"},
    {"name": "whole", "provider": "d9d", **HARD},
    {"name": "cut", "out": "cut", "provider": "d9d", "total_steps": 5, **HARD},
    {"name": "rest", "out": "cut", "provider": "d9d", **HARD},
]


def in_folders(jobs):
    """Each job in a folder of its own name, where it says nothing else."""
    return [{"out": job["name"], **job} for job in jobs]


@pytest.fixture(scope="module")
def alone(d9d, tmp_path_factory):
    """What d9d's trainer made of those jobs in one process."""
    return d9d.train(tmp_path_factory.mktemp("alone"), in_folders(ALONE))


@pytest.fixture(scope="module")
def guests(d9d, tmp_path_factory):
    """What Headrace's trainer made of those jobs in one process."""
    return d9d.train(tmp_path_factory.mktemp("guests"), in_folders(GUESTS), "d9d_guest")


def same(got, recorded):
    """The same microbatches; losses as far as d9d's log tells them."""
    assert got[0] == recorded[0]
    assert got[1] == pytest.approx(recorded[1], abs=1e-6)


def test_d9d_itself_trains_here_as_it_was_recorded(alone, golden):
    same(alone["d9d"], golden)


@pytest.mark.parametrize("provider", OURS)
def test_d9d_trains_the_same_on_what_headrace_feeds_it(alone, golden, provider):
    same(alone[provider], golden)


@pytest.mark.parametrize("provider", ["d9d", "headrace"])
def test_two_ranks_of_d9d_train_as_they_were_recorded_on_either_provider(d9d, golden_of_two, tmp_path, provider):
    jobs = in_folders([{"name": "job", "provider": provider, "ranks": 2}])
    same(d9d.train(tmp_path, jobs)["job"], golden_of_two)


def test_a_job_of_d9d_that_was_stopped_goes_on_exactly_with_headrace_s_state(alone):
    (whole,), losses = alone["whole"]
    assert ids([whole]) == list(range(NUM_SAMPLES))
    assert whole != sorted(whole)
    (first,), losses_before = alone["cut"]
    (rest,), losses_after = alone["rest"]
    assert first[: 5 * 4] + rest == whole
    assert losses_before + losses_after == losses


def test_a_job_of_d9d_goes_on_with_fewer_ranks_since_headrace_s_state_is_everybody_s(d9d, alone, tmp_path):
    (whole,), losses = alone["whole"]
    job = {"name": "two", "out": "job", "provider": "headrace", "shuffle": True}
    two, losses_before = d9d.train(tmp_path, [{**job, "total_steps": 5, "ranks": 2}])["two"]
    (rest,), losses_after = d9d.train(tmp_path, [{**job, "name": "one"}])["one"]
    assert ids([*two, rest]) == list(range(NUM_SAMPLES))
    assert rest == whole[5 * 4 :]
    assert losses_before + losses_after == pytest.approx(losses, abs=1e-6)


def test_d9d_trains_for_more_than_an_epoch_on_headrace_s_stream(alone):
    (microbatches,), losses = alone["two epochs"]
    first, second = microbatches[:32], microbatches[32:]
    assert ids([first]) == ids([second]) == list(range(NUM_SAMPLES))
    assert first != second
    assert len(losses) == 16


def test_d9d_trains_on_packs_of_token_budgets_of_any_length(alone):
    (microbatches,), losses = alone["token budget"]
    assert len(losses) == len(microbatches) // 8
    assert len(set(ids([microbatches]))) == len(ids([microbatches]))
    lengths = document_lengths()
    for rows in microbatches:
        assert max(lengths[rows]) * len(rows) <= 32
    assert len({len(rows) for rows in microbatches}) > 1


@pytest.mark.parametrize("provider", ["d9d", "headrace"])
def test_headrace_s_trainer_trains_the_same_as_d9d_s_on_either_provider(guests, golden, provider):
    same(guests[provider], golden)


def test_two_ranks_of_headrace_s_trainer_train_the_same_on_d9d_s_provider(d9d, golden_of_two, tmp_path):
    jobs = in_folders([{"name": "job", "provider": "d9d", "ranks": 2}])
    same(d9d.train(tmp_path, jobs, "d9d_guest")["job"], golden_of_two)


def test_a_job_of_headrace_s_trainer_over_d9d_s_provider_goes_on_exactly(guests):
    (whole,), losses = guests["whole"]
    (first,), _ = guests["cut"]
    (rest,), losses_in_parts = guests["rest"]
    assert first[: 5 * 4] + rest == whole
    assert losses_in_parts == losses
