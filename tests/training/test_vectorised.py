"""Fits that are made together are, each of them, the fit by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fints.config import TrainingConfig
from fints.model import Transformer
from fints.residual import RESIDUALS, options_of
from fints.training import FitResult, Member, fit, fit_together

# Products are summed in another order: some units in the last place a step, which training spreads.
TOLERANCE = 3e-6
SIZES = {"width": 16, "depth": 2, "num_heads": 2}


@pytest.fixture
def members(
    windows: Callable[..., Any], network: Callable[..., Transformer], schedule: Callable[..., TrainingConfig]
) -> Callable[..., list[Member]]:
    """Make three members that differ in weights, windows, their number, seed and learning rate."""

    def make(*, model: dict[str, Any], own: dict[int, dict[str, Any]] | None = None, **common: Any) -> Any:
        made = []
        for k in range(3):
            one = network(k, **{**SIZES, **model})
            generator = torch.Generator().manual_seed(100 + k)
            with torch.no_grad():
                # At initial values many wrong formulas agree with the right one.
                for parameter in one.parameters():
                    parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
            changes = {"steps": 12, "learning_rate": 3e-3 * (k + 1), **common, **(own or {}).get(k, {})}
            made.append(
                Member(
                    model=one,
                    train=windows(40 + 7 * k, seed=k),
                    validation=windows(20 + k, seed=50 + k),
                    config=schedule(**changes),
                    seed=k,
                )
            )
        return made

    return make


def alone(member: Member) -> FitResult:
    return fit(
        member.model,
        member.train,
        member.validation,
        member.config,
        seed=member.seed,
        profiler=member.profiler,
        on_row=member.on_row,
    )


def assert_same(found: FitResult, expected: FitResult) -> None:
    assert (found.outcome, found.reason) == (expected.outcome, expected.reason)
    assert (found.steps, found.best_step, found.device) == (
        expected.steps,
        expected.best_step,
        expected.device,
    )
    assert len(found.losses) == len(expected.losses)
    assert found.losses == pytest.approx(expected.losses, rel=TOLERANCE)
    assert found.best_validation_loss == pytest.approx(expected.best_validation_loss, rel=TOLERANCE)
    assert [list(row) for row in found.history] == [list(row) for row in expected.history]
    for own, other in zip(found.history, expected.history, strict=True):
        assert own == pytest.approx(other, rel=10 * TOLERANCE)


def assert_same_weights(found: nn.Module, expected: nn.Module) -> None:
    own, other = found.state_dict(), expected.state_dict()
    assert list(own) == list(other)
    for name, tensor in other.items():
        torch.testing.assert_close(own[name], tensor, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("name", RESIDUALS)
def test_under_every_scheme_members_are_fits_by_themselves(
    members: Callable[..., list[Member]], name: str
) -> None:
    options = {"num_streams": 2} if "num_streams" in options_of(name) else {}
    # Under AdamW a gradient that is nothing but rounding moves a weight as far as any other.
    given = {"model": {"residual": name, "residual_options": options}, "optimizer": "sgd", "steps": 6}
    one, other = members(**given), members(**given)
    for member, found in zip(other, fit_together(one), strict=True):
        assert_same(found, alone(member))
    for own, member in zip(one, other, strict=True):
        assert_same_weights(own.model, member.model)


@pytest.mark.parametrize(
    "model",
    [
        {"dropout": 0.3},
        {"dropout": 0.3, "residual": "post_norm", "activation": "relu", "width": 8},
        {"dropout": 0.3, "residual": "dynamic_hyper_connections"},
        {"dropout": 0.2, "residual": "block_attention_residuals", "value_residual": "learned"},
        {"norm": "rms_norm", "value_residual": "fixed", "width": 8, "residual": "attention_residuals"},
        {"head": "student_t", "positions": "learned", "residual": "dynamic_hyper_connections", "width": 24},
        {
            "residual": "by_depth",
            "residual_options": {"segments": [["attention_residuals", 1], ["post_norm", 1]]},
        },
    ],
    ids=lambda model: ", ".join(map(str, model.values())),
)
def test_members_are_fits_by_themselves_with_adamw_dropout_and_variants(
    members: Callable[..., list[Member]], model: dict[str, Any]
) -> None:
    own = {
        0: {"clip_norm": 0.1, "weight_decay": 0.3, "betas": (0.8, 0.9)},
        1: {"warmup_steps": 5, "keep": "last"},
        2: {"final_learning_rate_share": 0.3, "patience": 2},
    }
    common = {"loss": "nll"} if model.get("head") == "student_t" else {}
    one, other = (members(model=model, own=own, **common) for _ in range(2))
    for member, found in zip(other, fit_together(one), strict=True):
        assert_same(found, alone(member))


def test_one_member_diverges_and_one_stops_early_and_the_others_do_not_notice(
    members: Callable[..., list[Member]],
) -> None:
    own = {
        # The first step already throws it out, and what comes back is not finite.
        0: {"learning_rate": 1e12, "clip_norm": 1e12, "warmup_steps": 0},
        # Its rate is 0 to rounding, so no evaluation is better than the first.
        2: {"learning_rate": 1e-30, "patience": 1},
    }
    given = {"model": {"residual": "post_norm"}, "steps": 24, "evaluate_every": 4}
    one, other = members(**given, own=own), members(**given, own=own)
    found, expected = fit_together(one), [alone(member) for member in other]
    assert [result.outcome for result in expected] == ["diverged", "finished", "stopped_early"]
    assert found[0].outcome == "diverged"
    assert found[0].losses == pytest.approx(expected[0].losses, rel=TOLERANCE)
    for k in (1, 2):
        assert_same(found[k], expected[k])
    for k, (own_member, member) in enumerate(zip(one, other, strict=True)):
        assert all(bool(weight.isfinite().all()) for weight in own_member.model.parameters())
        assert not own_member.model.training
        if k != 1:
            # Both went back to the weights they came with, or hardly left them.
            assert_same_weights(own_member.model, member.model)
    # The middle one trains for 24 steps beside two that leave as it does beside two that stay.
    beside = members(**given, own={0: {"learning_rate": 1e-4}, 2: {"learning_rate": 1e-4}})
    assert_same(fit_together(beside)[1], found[1])


def test_members_that_are_fitted_again_have_the_same_bits(members: Callable[..., list[Member]]) -> None:
    given = {"model": {"residual": "dynamic_hyper_connections", "dropout": 0.1}}
    one, other = members(**given), members(**given)
    for first, second in zip(fit_together(one), fit_together(other), strict=True):
        for name in ("losses", "history", "profiles", "best_step", "best_validation_loss"):
            assert getattr(first, name) == getattr(second, name)
    for own, member in zip(one, other, strict=True):
        for weight, again in zip(own.model.parameters(), member.model.parameters(), strict=True):
            assert torch.equal(weight, again)


def test_each_profiler_sees_its_own_network_at_the_steps_and_with_the_updates_of_a_fit_by_itself(
    members: Callable[..., list[Member]],
) -> None:
    def watching(seen: list[dict[str, Any]]) -> Any:
        def watch(model: nn.Module, step: int, update: Any) -> list[dict[str, Any]]:
            size = sum(float(weight.detach().square().sum()) for weight in model.parameters())
            moved = {name: float(change.abs().max()) for name, change in update.items()}
            seen.append({"step": step, "size": size, **moved})
            return [{"step": step, "size": size}]

        return watch

    def watched() -> tuple[list[Member], list[list[dict[str, Any]]]]:
        seen: list[list[dict[str, Any]]] = [[], [], []]
        own = {1: {"patience": 1, "learning_rate": 1e-30}}
        made = members(model={}, own=own, optimizer="sgd", profile_every=8, evaluate_every=3)
        return [
            dataclasses.replace(member, profiler=watching(rows))
            for member, rows in zip(made, seen, strict=True)
        ], seen

    one, seen = watched()
    other, expected = watched()
    results = fit_together(one)
    for found, member in zip(results, other, strict=True):
        wanted = alone(member)
        assert found.outcome == wanted.outcome
        assert [row["step"] for row in found.profiles] == [row["step"] for row in wanted.profiles]
    assert [row["step"] for row in seen[0]] == [0, 8, 12]
    assert [row["step"] for row in seen[1]] == [0, 6]
    for own, theirs in zip(seen, expected, strict=True):
        for row, same in zip(own, theirs, strict=True):
            # The bias of keys has no gradient, so what moves it is rounding.
            assert row == pytest.approx(same, rel=1e-4, abs=1e-8)


def test_a_profiler_that_clears_gradients_cuts_no_network_off(members: Callable[..., list[Member]]) -> None:
    def clearing(model: nn.Module, step: int, update: Any) -> list[dict[str, Any]]:
        model.zero_grad(set_to_none=True)
        return []

    def cleared() -> list[Member]:
        # Its scheme's parameters are those of each network, not of the stack.
        made = members(model={"residual": "dynamic_hyper_connections"}, optimizer="sgd", profile_every=2)
        return [dataclasses.replace(member, profiler=clearing) for member in made]

    one, other = cleared(), cleared()
    for member, found in zip(other, fit_together(one), strict=True):
        assert_same(found, alone(member))
    for own, member in zip(one, other, strict=True):
        assert_same_weights(own.model, member.model)


def test_seconds_of_members_add_up_to_no_more_than_the_clock_and_nothing_is_left_out(
    members: Callable[..., list[Member]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fints.training import vectorised_loop

    ticks = iter(range(10_000))
    monkeypatch.setattr(vectorised_loop.time, "perf_counter", lambda: float(next(ticks)))
    own = {1: {"patience": 1, "learning_rate": 1e-30}}
    results = fit_together(members(model={}, own=own, evaluate_every=3))
    assert results[1].steps < results[0].steps
    spent = next(ticks) - 1
    assert sum(result.seconds for result in results) == pytest.approx(spent - 0, abs=1)
    assert all(0 < result.seconds_a_step < result.seconds for result in results)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "bfloat16"}, r"cannot be vectorised: .*float32.* Fit one by one\."),
        ({"activation_checkpointing": True}, r"cannot be vectorised: .*activation_checkpointing"),
    ],
)
def test_what_cannot_be_vectorised_is_refused_in_one_line(
    members: Callable[..., list[Member]], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        fit_together(members(model={}, **changes))
    assert "\n" not in str(caught.value)


def test_members_that_differ_in_what_they_share_are_refused(members: Callable[..., list[Member]]) -> None:
    with pytest.raises(ValueError, match=r"must agree in training\.batch_size; got 8 and 4"):
        fit_together(members(model={}, own={1: {"batch_size": 4}}))
    made = members(model={})
    with pytest.raises(ValueError, match="all have validation windows, or none"):
        fit_together([made[0], dataclasses.replace(made[1], validation=None)])
    deeper = members(model={"depth": 1})
    with pytest.raises(ValueError, match="must have one structure"):
        fit_together([made[0], deeper[1]])
    with pytest.raises(ValueError, match=r"must be a fints\.model\.Transformer; got Linear"):
        fit_together([dataclasses.replace(made[0], model=nn.Linear(3, 1))])


def test_too_little_memory_for_all_is_said_before_the_first_step(
    members: Callable[..., list[Member]],
) -> None:
    made = [dataclasses.replace(member, estimated_bytes=2**60) for member in members(model={})]
    results = fit_together(made)
    assert [result.outcome for result in results] == ["out_of_memory"] * 3
    assert results[0].reason.startswith("3 fits together need about 3221225472.00 GiB")
