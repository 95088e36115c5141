"""Gradients add up to those of the whole step, whatever it was cut into."""

import pytest
import torch

from headrace import GradientManagerConfig
from headrace.errors import OptionError
from headrace.training.gradients import Gradients, exchange_in_messages


class Model(torch.nn.Module):
    """A layer that is used, one that never is, and one that is not trained."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.used = torch.nn.Linear(3, 2)
        self.unused = torch.nn.Linear(2, 2)
        self.fixed = torch.nn.Linear(2, 1).requires_grad_(False)

    def forward(self, inputs):
        return self.fixed(self.used(inputs))


def made(model, dtype=None):
    return Gradients(model, torch.device("cpu"), GradientManagerConfig(grad_dtype=dtype), 1)


ROWS = torch.arange(36.0).reshape(12, 3).sin()


@pytest.mark.parametrize("dtype", [None, "float32", "float64"])
@pytest.mark.parametrize("sizes", [(12,), (4, 8), (1, 0, 5, 6)])
def test_weighted_means_of_microbatches_make_the_mean_of_the_whole_step(sizes, dtype):
    model = Model()
    expected = torch.autograd.grad(model(ROWS).square().mean(), list(model.used.parameters()))
    gradients = made(model, dtype)
    for rows in ROWS.split(sizes):
        gradients.backward(model(rows).square().mean(), len(rows))  # NaN for no rows
    loss = gradients.finish()
    assert loss.item() == pytest.approx(model(ROWS).square().mean().item(), abs=1e-6)
    for parameter, gradient in zip(model.used.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-6, rtol=0)


def test_a_parameter_that_nothing_used_has_zeros_and_one_that_is_not_trained_has_none():
    model = Model()
    gradients = made(model)
    gradients.backward(model(ROWS).mean(), None)
    gradients.finish()
    assert not model.unused.weight.grad.any()
    assert model.fixed.weight.grad is None


@pytest.mark.parametrize("dtype", [None, "float64"])
def test_a_step_that_counts_nothing_has_zeros_and_no_nan(dtype):
    model = Model()
    gradients = made(model, dtype)
    gradients.backward(model(ROWS[:0]).mean(), torch.tensor(0))
    assert gradients.finish().item() == 0
    assert gradients.clip(1.0).item() == 0
    assert not any(parameter.grad.any() for parameter in model.used.parameters())


def test_clear_begins_another_step():
    model = Model()
    gradients = made(model, "float64")
    for _ in range(2):
        gradients.backward(model(ROWS).sum(), 2.0)
        gradients.finish()
        found = [parameter.grad.clone() for parameter in model.used.parameters()]
        gradients.clear()
        assert all(parameter.grad is None for parameter in model.parameters())
    again = torch.autograd.grad(model(ROWS).sum(), list(model.used.parameters()))
    torch.testing.assert_close(found, list(again))


def test_clipping_scales_all_gradients_to_the_norm_and_gives_the_one_before():
    model = Model()
    gradients = made(model)
    gradients.backward(model(ROWS).sum() * 100, None)
    gradients.finish()
    before = torch.cat([one.grad.ravel() for one in model.parameters() if one.grad is not None]).norm()
    assert gradients.clip(None) == pytest.approx(before.item())
    assert gradients.clip(0.5) == pytest.approx(before.item())
    assert gradients.clip(None) == pytest.approx(0.5, abs=1e-5)


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf")])
def test_a_weight_that_means_nothing_is_refused(weight):
    model = Model()
    with pytest.raises(OptionError, match="loss_weight="):
        made(model).backward(model(ROWS).mean(), weight)


def test_messages_hold_one_type_and_about_the_given_size():
    tensors = [torch.full((size,), size + 0.5) for size in (10, 10, 100, 1)]
    tensors += [torch.ones(1, dtype=torch.float64), torch.arange(4.0).reshape(2, 2).T]
    assert messages(tensors, 80) == [(20, torch.float32), (100, torch.float32), (5, torch.float32), (1, torch.float64)]
    assert messages(tensors, 10_000) == [(125, torch.float32), (1, torch.float64)]
    assert messages([], 80) == []


def messages(tensors, most_bytes):
    """How large each message was, and of which type, when tensors were doubled on their way."""
    before = [tensor.clone() for tensor in tensors]
    seen = []

    def double(message):
        seen.append((message.numel(), message.dtype))
        message *= 2

    exchange_in_messages(tensors, most_bytes, double)
    torch.testing.assert_close(tensors, [2 * tensor for tensor in before])
    return seen


@pytest.mark.parametrize("dtype", [None, "float64"])
def test_a_mean_of_nothing_brings_no_nan_where_its_weight_is_not_waited_for(dtype):
    model = Model()
    gradients = made(model, dtype)
    gradients.is_sharded = True  # so that a weight of 0 takes part, as one on a device does
    masks = [torch.zeros(12), torch.ones(12)]
    for mask in masks:
        output = {"scores": model(ROWS).squeeze(-1)}
        loss = (output["scores"] * mask).sum() / mask.sum()  # whose gradient is infinite for no rows
        gradients.backward(loss, mask.sum(), output)
    assert gradients.finish().item() == pytest.approx(model(ROWS).mean().item())
    expected = torch.autograd.grad(model(ROWS).mean(), model.used.weight)[0]
    torch.testing.assert_close(model.used.weight.grad, expected)


def test_layers_that_are_thawed_or_frozen_count_from_the_next_step_on():
    model = Model()
    gradients = made(model, "float64")
    for fixed in (True, False, True):
        model.fixed.requires_grad_(not fixed)
        for rows in ROWS.split(3):
            gradients.backward(model(rows).square().mean(), 3.0)
        gradients.finish()
        if fixed:
            assert model.fixed.weight.grad is None
        else:
            expected = torch.autograd.grad(model(ROWS).square().mean(), model.fixed.weight)[0]
            torch.testing.assert_close(model.fixed.weight.grad, expected)
        gradients.clear()


def test_the_loss_of_a_small_type_is_weighted_in_a_large_one():
    model = Model().bfloat16()
    gradients = made(model)
    loss = model(ROWS.bfloat16()).square().mean()
    gradients.backward(loss, 1001.0)
    assert gradients.finish().item() == loss.item()
