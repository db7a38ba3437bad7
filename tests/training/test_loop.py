from __future__ import annotations

import pytest
import torch

from fints.training import derive, evaluate, fit, learning_rate, loop, make_loss, predict
from fints.training.batches import BatchOrder

CPU = torch.device("cpu")


def _weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def _same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def _validation_loss(model, batches, config, batch_size=8):
    autocast = torch.autocast("cpu", enabled=False)
    loss = make_loss(config)
    return evaluate(model.eval(), batches, loss, batch_size=batch_size, device=CPU, autocast=autocast)


def test_the_loop_is_adamw_on_clipped_gradients_of_the_mean_loss(network, windows, schedule):
    config = schedule(steps=7, evaluate_every=7, clip_norm=0.3, weight_decay=0.1)
    train = windows(20)
    # In double precision: Adam blows the rounding of a gradient that is zero up to a full step.
    train.inputs, train.targets = train.inputs.double(), train.targets.double()
    model, by_hand = network().double(), network().double()
    result = fit(model, train, None, config, seed=4)

    order = BatchOrder(20, 8, seed=4)
    moments = {name: [torch.zeros_like(p), torch.zeros_like(p)] for name, p in by_hand.named_parameters()}
    losses, counts, norms = [], [], []
    beta1, beta2 = config.betas
    for step in range(7):
        inputs, targets = train.gather(order(step))
        present = ~targets.isnan()
        errors = (by_hand(inputs).mean[..., 0] - targets)[present]
        by_hand.zero_grad()
        errors.square().mean().backward()
        losses.append(errors.square().sum().item())
        counts.append(len(errors))
        norm = torch.cat([p.grad.flatten() for p in by_hand.parameters()]).norm()
        norms.append(norm.item())
        rate = learning_rate(step, config)
        linear = {id(m.weight) for m in by_hand.modules() if isinstance(m, torch.nn.Linear)}
        with torch.no_grad():
            for name, p in by_hand.named_parameters():
                g = p.grad * min(1.0, 0.3 / (norm.item() + 1e-6))
                first, second = moments[name]
                first.mul_(beta1).add_((1 - beta1) * g)
                second.mul_(beta2).add_((1 - beta2) * g * g)
                if id(p) in linear:
                    p.mul_(1 - rate * 0.1)
                corrected = first / (1 - beta1 ** (step + 1))
                p.sub_(rate * corrected / ((second / (1 - beta2 ** (step + 1))).sqrt() + 1e-8))

    assert max(norms) > 0.3
    for name, weight in by_hand.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], weight, rtol=0, atol=1e-10)
    (row,) = result.history
    assert row["step"] == 7
    assert row["train_loss"] == pytest.approx(sum(losses) / sum(counts), rel=1e-10)
    assert row["gradient_norm"] == pytest.approx(sum(norms) / 7, rel=1e-10)
    assert row["learning_rate"] == learning_rate(6, config)
    assert row["validation_loss"] is None


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(network, windows, schedule):
    runs = []
    for seed in (3, 3, 4):
        model = network(dropout=0.2)
        runs.append((fit(model, windows(20), windows(9, 1), schedule(), seed=seed), _weights(model)))
    assert _same(runs[0][1], runs[1][1])
    assert runs[0][0].history == runs[1][0].history
    assert not _same(runs[0][1], runs[2][1])


def test_what_a_callback_draws_or_sets_moves_nothing(network, windows, schedule):
    def disturb(row):
        torch.manual_seed(row["step"])
        torch.rand(1000)
        row.clear()

    models = [network(dropout=0.2), network(dropout=0.2)]
    first = fit(models[0], windows(20), windows(9, 1), schedule(), seed=3)
    second = fit(models[1], windows(20), windows(9, 1), schedule(), seed=3, on_row=disturb)
    assert _same(_weights(models[0]), _weights(models[1]))
    assert first.history == second.history


def test_the_callers_generators_threads_and_grad_mode_are_left_as_found(network, windows, schedule):
    torch.manual_seed(5)
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    with torch.no_grad():
        result = fit(network(dropout=0.2), windows(20), windows(9, 1), schedule(threads=threads + 1), seed=3)
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    assert result.steps == 24


def test_every_arm_sees_the_same_batches(network, windows, schedule):
    seen = []
    for residual, depth in (("pre_norm", 1), ("post_norm", 1), ("dynamic_hyper_connections", 2)):
        train = windows(20)
        fit(network(residual=residual, depth=depth, dropout=0.1), train, None, schedule(), seed=3)
        seen.append(torch.stack(train.asked))
    assert seen[0].shape == (24, 8)
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])


def test_dropout_of_a_step_derives_from_the_seed_and_the_step_alone(network, windows, schedule):
    """Evaluating more often must not shift the stream."""
    models = [network(dropout=0.3), network(dropout=0.3)]
    for model, every in zip(models, (3, 24), strict=True):
        fit(model, windows(20), windows(9, 1), schedule(evaluate_every=every, keep="last"), seed=3)
    assert _same(_weights(models[0]), _weights(models[1]))


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 8, 30, 31, 64])
def test_the_validation_loss_does_not_depend_on_the_batch_size(network, windows, schedule, batch_size):
    model, batches = network(), windows(31, 1)
    value = _validation_loss(model, batches, schedule(), batch_size)
    errors = (model(batches.inputs).mean[..., 0] - batches.targets).double()
    assert value == pytest.approx(errors[~errors.isnan()].square().mean().item(), rel=1e-6)


def test_evaluation_is_free_of_dropout_and_leaves_no_graph(network, windows, schedule):
    model = network(dropout=0.5)
    result = fit(model, windows(20), windows(9, 1), schedule(keep="last"), seed=3)
    assert not model.training
    again = _validation_loss(model, windows(9, 1), schedule())
    assert result.history[-1]["validation_loss"] == again
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_kept_weights_are_those_of_the_best_validation_loss(network, windows, schedule):
    config = schedule(steps=60, evaluate_every=3, learning_rate=0.1, final_learning_rate_share=1.0)
    model, validation = network(), windows(9, 1)
    result = fit(model, windows(12), validation, config, seed=3)
    losses = {row["step"]: row["validation_loss"] for row in result.history}
    assert result.best_validation_loss == min(losses.values())
    assert result.best_step == min(losses, key=losses.__getitem__) < 60
    assert _validation_loss(model, validation, config) == result.best_validation_loss


def test_early_stopping_counts_evaluations_without_a_better_validation_loss(network, windows, schedule):
    config = schedule(
        steps=200, evaluate_every=4, patience=3, learning_rate=0.1, final_learning_rate_share=1.0
    )
    model, validation = network(), windows(9, 1)
    result = fit(model, windows(12), validation, config, seed=3)
    losses = [row["validation_loss"] for row in result.history]
    assert result.outcome == "stopped_early"
    assert f"step {result.best_step} in 3 evaluations, up to step {result.steps}" in result.reason
    assert result.steps == result.history[-1]["step"] == result.best_step + 12 < 200
    assert min(losses[-3:]) >= min(losses[:-3]) == result.best_validation_loss
    assert _validation_loss(model, validation, config) == result.best_validation_loss


def test_validation_decides_only_what_is_kept_and_when_to_stop(network, windows, schedule):
    """Other validation data, or none, changes no weight on the way."""
    models = [network(dropout=0.1) for _ in range(3)]
    sets = (windows(9, 1), windows(30, 2), None)
    results = [
        fit(model, windows(20), validation, schedule(keep="last"), seed=3)
        for model, validation in zip(models, sets, strict=True)
    ]
    assert _same(_weights(models[0]), _weights(models[1]))
    assert _same(_weights(models[0]), _weights(models[2]))
    trained = [[row["train_loss"] for row in result.history] for result in results]
    assert trained[0] == trained[1] == trained[2]


def test_without_validation_the_last_weights_are_kept(network, windows, schedule):
    best, last = network(), network()
    result = fit(best, windows(20), None, schedule(keep="best"), seed=3)
    fit(last, windows(20), None, schedule(keep="last"), seed=3)
    assert _same(_weights(best), _weights(last))
    assert (result.best_step, result.best_validation_loss) == (24, None)


def test_a_planted_leak_is_found_within_seconds(network, windows, schedule):
    """A feature that is the target plus noise: the best forecast has R2 = 1 / (1 + 0.25)."""
    sets = []
    for number, seed in ((600, 0), (200, 1)):
        batches = windows(number, seed, missing=False)
        noise = torch.randn(batches.targets.shape, generator=torch.Generator().manual_seed(seed + 100))
        batches.targets = torch.randn(batches.targets.shape, generator=torch.Generator().manual_seed(seed))
        batches.inputs[..., 1] = batches.targets + 0.5 * noise
        sets.append(batches)
    train, test = sets
    model = network()
    fit(model, train, None, schedule(steps=200, batch_size=32, evaluate_every=200), seed=0)
    forecast, realised = predict(model, test)["mean"][:, 0], test.targets[:, -1]
    r2 = 1 - (forecast - realised).square().sum() / realised.square().sum()
    assert 0.7 < r2 < 0.85


def test_sets_without_windows_or_targets_are_refused(network, windows, schedule):
    bare = windows(9, 1)
    bare.targets = torch.full_like(bare.targets, torch.nan)
    with pytest.raises(ValueError, match="training needs at least one window"):
        fit(network(), windows(0), None, schedule(), seed=0)
    with pytest.raises(ValueError, match="validation needs at least one window; got none"):
        fit(network(), windows(9), windows(0), schedule(), seed=0)
    with pytest.raises(ValueError, match="at least one target; got 9 windows without any"):
        fit(network(), windows(9), bare, schedule(), seed=0)
    with pytest.raises(ValueError, match="training needs targets; the windows of steps 1 to 6 hold none"):
        fit(network(), bare, None, schedule(), seed=0)


def test_early_stopping_without_validation_is_refused(network, windows, schedule):
    with pytest.raises(ValueError, match=r"training.patience = 2\) needs a validation set"):
        fit(network(), windows(9), None, schedule(patience=2), seed=0)


def test_the_order_and_dropout_of_a_fit_come_from_different_streams():
    assert derive(3, "batches", 0) != derive(3, "dropout", 0)


def test_time_is_counted(network, windows, schedule):
    result = fit(network(), windows(20), windows(9, 1), schedule(), seed=3)
    assert 0 < result.seconds_a_step * 24 < result.seconds
    assert result.peak_memory is None or result.peak_memory > 2**20
    assert result.device == "cpu"


class Clock:
    """A clock that only moves when told to."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now


@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_a_steps_time_leaves_out_evaluations_profiles_and_checkpoints(
    network, windows, schedule, monkeypatch, tmp_path, with_checkpoint
):
    """A step takes 1 s here, an evaluation 10, a profile 100 and a checkpoint 1000."""
    clock = Clock()
    monkeypatch.setattr(loop, "time", clock)

    def taking(seconds, function):
        def timed(*arguments, **more):
            clock.now += seconds
            return function(*arguments, **more)

        return timed

    monkeypatch.setattr(loop, "validate", taking(10, loop.validate))
    monkeypatch.setattr(loop, "write_checkpoint", taking(1000, loop.write_checkpoint))
    monkeypatch.setattr(loop, "reseed", taking(1, loop.reseed))
    result = fit(
        network(),
        windows(20),
        windows(9, 1),
        schedule(profile_every=12),
        seed=3,
        checkpoint=tmp_path / "fit.pt" if with_checkpoint else None,
        profiler=taking(100, lambda model, step, update: []),
    )
    assert result.seconds == 24 * 1 + 4 * 10 + 3 * 100 + 4 * 1000 * with_checkpoint
    assert result.seconds_a_step == 1
