"""What a sublayer does for the loss and the forecast: skips, probes, changes of the output."""

from __future__ import annotations

import copy

import pytest
import torch

from fints.diagnostics import (
    contiguous_sublayers,
    loss_when_skipped,
    output_change,
    output_change_by_branch,
    probe_rows,
    ridge_probe,
    skip_rows,
    step_output_change,
)
from fints.interventions import intervene


class TensorWindows:
    def __init__(self, inputs, targets):
        self.inputs, self.targets = inputs, targets

    def __len__(self):
        return len(self.inputs)

    def gather(self, positions):
        return self.inputs[positions], self.targets[positions]


@pytest.mark.parametrize("residual", ["pre_norm", "post_norm", "static_hyper_connections", "denseformer"])
def test_a_skipped_sublayer_writes_nothing_and_its_streams_are_mixed_all_the_same(
    random_network, batch, loss, residual
):
    """The same as an output map of zeros, in whatever scheme."""
    x, y = batch
    model = random_network(residual)
    for layers in ((1,), (2, 3), (0, 1, 2, 3)):
        silent = copy.deepcopy(model).eval()
        with torch.no_grad():
            for layer in layers:
                silent.branches[layer].output.weight.zero_()
                silent.branches[layer].output.bias.zero_()
        expected = loss(silent(x), y).mean().item()
        assert loss_when_skipped(model, x, y, layers, loss=loss) == pytest.approx(expected)
        assert expected != pytest.approx(loss(model.eval()(x), y).mean().item(), rel=1e-6)


def test_skipping_is_what_training_with_skipped_sublayers_starts_from(random_network, batch, loss):
    x, y = batch
    expected = loss_when_skipped(random_network(), x, y, (2, 3), loss=loss)
    model = random_network().eval()
    intervene(model, {"skipped_sublayers": {"dose": 1.0, "first": 2, "number": 2}}, seed=0)
    assert loss(model(x), y).mean().item() == pytest.approx(expected)


def test_skips_with_a_value_residual_keep_the_first_values(random_network, batch, loss):
    model = random_network(value_residual="learned")
    assert loss_when_skipped(model, *batch, (0,), loss=loss) > 0


def test_there_is_a_row_for_each_sublayer_and_each_run_of_blocks(random_network, batch, loss):
    rows = skip_rows(random_network(depth=3), *batch, loss=loss, blocks=(1, 2))
    runs = [(row["first"], row["number"]) for row in rows]
    assert runs == [*((k, 1) for k in range(6)), (0, 2), (2, 2), (4, 2), (0, 4), (2, 4)]
    assert contiguous_sublayers(6, blocks=3) == [range(6)]
    whole = loss_when_skipped(random_network(depth=3), *batch, (), loss=loss)
    assert rows[7]["rise"] == pytest.approx(rows[7]["loss"] - whole)


def test_output_change_is_the_linear_response_to_a_relative_move(random_network, batch):
    """Halving the move changes nothing to first order; ten times the head's weights, ten times the change."""
    model, x = random_network(), batch[0]
    one = output_change(model, x, relative=1e-3, draws=2)
    assert output_change(model, x, relative=1e-4, draws=2) == pytest.approx(one, rel=1e-3)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    louder = copy.deepcopy(model)
    with torch.no_grad():
        louder.head.linear.weight.mul_(10)
    assert output_change(louder, x, draws=2) == pytest.approx(10 * output_change(model, x, draws=2))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_branch_whose_output_map_is_small_answers_little(random_network, batch):
    model = random_network()
    with torch.no_grad():
        for parameter in model.branches[1].output.parameters():
            parameter.mul_(1e-6)
    changes = output_change_by_branch(model, batch[0])
    assert changes[1] < 1e-4 * min(changes[0], changes[2], changes[3])


def test_the_output_change_of_a_step_is_that_of_the_weights_it_moved(random_network, batch):
    model, x = random_network(), batch[0]
    before = model.eval()(x).mean
    generator = torch.Generator().manual_seed(5)
    update = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            update[name] = 1e-2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(update[name])
    expected = (model(x).mean - before).square().mean().sqrt().item()
    assert step_output_change(model, x, update) == pytest.approx(expected, rel=1e-9)


def test_a_probe_is_ridge_regression_with_the_penalty_of_least_leave_one_out_error():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(30, 4, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 5, 0.1, 2]) + 3
    s = z @ torch.tensor([0.5, 0.0, 2.0, -0.1], dtype=torch.float64)
    s = s + torch.randn(30, generator=generator, dtype=torch.float64)
    train, held = slice(0, 20), slice(20, 30)
    mean, spread = z[train].mean(0), z[train].std(0, correction=0)
    features = (z - mean) / spread

    def fitted(x, target, penalty):
        centre = x.mean(0)
        gram = (x - centre).T @ (x - centre) + penalty * 20 * torch.eye(4, dtype=torch.float64)
        return torch.linalg.solve(gram, (x - centre).T @ (target - target.mean())), target.mean()

    errors = {}
    for penalty in (0.01, 1.0, 10.0):
        w, level = fitted(features[train], s[train], penalty)
        gram = features[train].T @ features[train] + penalty * 20 * torch.eye(4, dtype=torch.float64)
        hat = features[train] @ torch.linalg.solve(gram, features[train].T)
        left_out = (s[train] - level - features[train] @ w) / (1 - hat.diagonal() - 1 / 20)
        errors[penalty] = (float(left_out.square().mean()), w, level)
    _, w, level = min(errors.values(), key=lambda found: found[0])
    forecast = level + features[held] @ w
    share = 1 - (forecast - s[held]).square().sum() / s[held].square().sum()
    found = ridge_probe(z[train], s[train], z[held], s[held], penalties=(0.01, 1.0, 10.0))
    assert found == pytest.approx(share.item())


def test_a_probe_finds_all_of_a_linear_signal_and_nothing_in_noise():
    generator = torch.Generator().manual_seed(1)
    z, noise = torch.randn(400, 8, generator=generator), torch.randn(400, generator=generator)
    signal = z[:, 2] - z[:, 5]
    assert ridge_probe(z[:300], signal[:300], z[300:], signal[300:]) > 0.999
    assert abs(ridge_probe(z[:300], noise[:300], z[300:], noise[300:])) < 0.1
    signal[10] = torch.nan
    assert ridge_probe(z[:300], signal[:300], z[300:], signal[300:]) > 0.999
    with pytest.raises(ValueError, match="two windows on each side and a signal"):
        ridge_probe(z, signal, z[:3], torch.zeros(3))


def test_the_embedding_knows_a_linear_signal_of_the_last_day_and_depth_may_forget_it(random_network):
    """Sublayers that overwrite all but one direction of the trunk leave a probe nothing."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(300, 6, 3, generator=generator, dtype=torch.float64)
    signal = x[:, -1, 0]
    sides = TensorWindows(x[:200], x[:200, :, 0]), TensorWindows(x[200:], x[200:, :, 0])
    rows = probe_rows(random_network(), *sides, said=signal[:200], held_out=signal[200:])
    assert [row["layer"] for row in rows] == [0, 1, 2, 3, 4]
    assert rows[0]["share"] > 0.999
    assert rows[4]["share_network"] < rows[4]["share"]
