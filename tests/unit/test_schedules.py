"""Schedules against formulas, hand-computed sequences, and torch."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from sparkdl.optim import Constant, Cosine, MultiStep, OneCycle, OnPlateau, Polynomial, Schedule, Step, WarmUp


def factors(schedule: Schedule, total: int, per_epoch: int = 1) -> list[float]:
    state = schedule.init()
    return [schedule.factor(step, per_epoch, total, state) for step in range(total)]


def watch(schedule: Schedule, figures: list[float], state: dict[str, Any] | None = None) -> list[float]:
    """The factor after each epoch's figure."""
    state, seen = schedule.init() if state is None else state, []
    for figure in figures:
        schedule.observe(state, {"loss": 0.0, "val_loss": figure})
        seen.append(schedule.factor(0, 1, 10, state))
    return seen


@pytest.mark.parametrize(
    ("schedule", "per_epoch", "expected"),
    [
        (Constant(), 2, [1, 1, 1, 1, 1, 1]),
        (Step(every=1, gamma=0.5), 2, [1, 1, 0.5, 0.5, 0.25, 0.25]),
        (Step(every=2, gamma=0.5), 1, [1, 1, 0.5, 0.5, 0.25, 0.25]),
        (Step(every=3), 2, [1, 1, 1, 1, 1, 1]),
        (MultiStep((1, 2), 0.5), 2, [1, 1, 0.5, 0.5, 0.25, 0.25]),
        (MultiStep((1, 4), 0.1), 1, [1, 0.1, 0.1, 0.1, 0.01, 0.01]),
        (MultiStep(()), 1, [1, 1, 1, 1, 1, 1]),
        (Cosine(), 1, [1, 0.5 + math.sqrt(3) / 4, 0.75, 0.5, 0.25, 0.5 - math.sqrt(3) / 4]),
        (Cosine(0.2), 1, [0.2 + 0.8 * (1 + math.cos(math.pi * i / 6)) / 2 for i in range(6)]),
        (Polynomial(), 1, [1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        (Polynomial(2, 0.1), 1, [0.1 + 0.9 * ((6 - i) / 6) ** 2 for i in range(6)]),
        (OneCycle(2, pct=0.5, div=4, final_div=10), 1, [0.5, 1.25, 2, 1.5125, 0.5375, 0.05]),
    ],
    ids=repr,
)
def test_by_formula(schedule: Schedule, per_epoch: int, expected: Any) -> None:
    assert factors(schedule, 6, per_epoch) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("total", [2, 3, 7, 100])
@pytest.mark.parametrize(
    ("schedule", "name", "arguments"),
    [
        (Cosine(), "CosineAnnealingLR", lambda n: {"T_max": n}),
        (Cosine(0.3), "CosineAnnealingLR", lambda n: {"T_max": n, "eta_min": 0.3}),
        (Polynomial(3), "PolynomialLR", lambda n: {"total_iters": n, "power": 3}),
        (Step(2, 0.5), "StepLR", lambda n: {"step_size": 2, "gamma": 0.5}),
        (MultiStep((1, 5), 0.5), "MultiStepLR", lambda n: {"milestones": [1, 5], "gamma": 0.5}),
        (OneCycle(), "OneCycleLR", lambda n: {"max_lr": 1.0, "total_steps": n}),
        (OneCycle(3, 0.45, 10, 50), "OneCycleLR", lambda n: one_cycle(n, 3.0, 0.45, 10, 50)),
        (OneCycle(pct=0.0), "OneCycleLR", lambda n: one_cycle(n, 1.0, 0.0, 25, 1e4)),
        (OneCycle(pct=1.0), "OneCycleLR", lambda n: one_cycle(n, 1.0, 1.0, 25, 1e4)),
    ],
    ids=lambda value: None if callable(value) else repr(value),
)
def test_torch_agrees(schedule: Schedule, name: str, arguments: Any, total: int) -> None:
    torch = pytest.importorskip("torch")
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs, expected = getattr(torch.optim.lr_scheduler, name)(sgd, **arguments(total)), []
    for step in range(total):
        expected.append(float(sgd.param_groups[0]["lr"]))
        sgd.step()
        if step < total - 1:
            theirs.step()
    assert factors(schedule, total) == pytest.approx(expected, rel=1e-9, abs=1e-15)


def one_cycle(total: int, peak: float, pct: float, div: float, final: float) -> dict[str, Any]:
    return {"max_lr": peak, "total_steps": total, "pct_start": pct, "div_factor": div, "final_div_factor": final}


@pytest.mark.parametrize(
    "schedule", [Cosine(), Polynomial(), OneCycle(pct=1.0), WarmUp(steps=1, then=Cosine())], ids=repr
)
def test_a_run_of_one_step_takes_it_at_full_rate(schedule: Schedule) -> None:
    assert factors(schedule, 1) == [1.0]


@pytest.mark.parametrize(
    ("schedule", "last"),
    [(Constant(), 1), (Cosine(0.1), 0.1), (Polynomial(end_factor=0.2), 0.2), (OneCycle(div=10, final_div=10), 0.01)],
    ids=repr,
)
def test_past_the_end_the_last_value_stays(schedule: Schedule, last: float) -> None:
    assert [schedule.factor(step, 2, 8, {}) for step in (8, 9, 100)] == pytest.approx([last] * 3)


WARM = [0.2, 0.4, 0.6, 0.8, 1.0]
EIGHTH = math.cos(math.pi / 4) / 2


@pytest.mark.parametrize(
    ("schedule", "per_epoch", "expected"),
    [
        (WarmUp(steps=5), 1, [*WARM, 1, 1, 1]),
        (WarmUp(epochs=1), 5, [*WARM, 1, 1, 1]),
        (WarmUp(epochs=2.5), 2, [*WARM, 1, 1, 1]),
        (WarmUp(), 1, [1] * 8),
        (WarmUp(steps=1), 1, [1] * 8),
        (
            WarmUp(steps=4, then=Cosine()),
            1,
            [0.25, 0.5, 0.75, 1, 1, 0.5 + EIGHTH, 0.5, 0.5 - EIGHTH],
        ),
        (WarmUp(steps=2, then=Step(2, 0.5)), 1, [0.5, 1, 1, 1, 0.5, 0.5, 0.25, 0.25]),
        (WarmUp(epochs=1, then=MultiStep((2,))), 2, [0.5, 1, 1, 1, 1, 1, 0.1, 0.1]),
        (WarmUp(steps=0, then=Polynomial()), 1, [1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]),
        (WarmUp(steps=20, then=Cosine()), 1, [i / 20 for i in range(1, 9)]),
    ],
    ids=repr,
)
def test_warm_up(schedule: Schedule, per_epoch: int, expected: Any) -> None:
    assert factors(schedule, 8, per_epoch) == pytest.approx(expected, rel=1e-12)


def test_warm_up_of_a_base_rate() -> None:
    lrs = [0.1 * f for f in factors(WarmUp(steps=5), 6)]
    assert lrs == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1, 0.1])


@pytest.mark.parametrize(
    ("schedule", "figures", "expected"),
    [
        (OnPlateau(gamma=0.5, patience=2), [3, 2, 2, 2, 2, 2, 1], [1, 1, 1, 0.5, 0.5, 0.25, 0.25]),
        (OnPlateau(gamma=0.5, patience=1), [0.5, 0.6, 0.7], [1, 0.5, 0.25]),
        (OnPlateau(gamma=0.5, patience=2), [1, 2, 0.9, 2, 0.8, 2], [1] * 6),  # only figures in a row count
        (OnPlateau(gamma=0.5, patience=1, min_factor=0.3), [1, 1, 1, 1], [1, 0.5, 0.3, 0.3]),
        (OnPlateau(gamma=0.5, patience=1, mode="max"), [1, 2, 1, 3, 3], [1, 1, 0.5, 0.5, 0.25]),
        (OnPlateau(gamma=0.5, patience=1, min_delta=0.1), [1, 0.95, 0.85], [1, 0.5, 0.5]),
        (OnPlateau(gamma=0.5, patience=1, min_delta=0.1, mode="max"), [1, 1.05, 1.2], [1, 0.5, 0.5]),
        (OnPlateau(gamma=0.5, patience=1), [math.nan, 2, math.nan, 1], [0.5, 0.5, 0.25, 0.25]),
        (OnPlateau(gamma=0.5, patience=1), [math.inf, 5, 4, -math.inf], [0.5, 0.5, 0.5, 0.25]),
        (WarmUp(then=OnPlateau(gamma=0.5, patience=1)), [1, 1], [1, 0.5]),
    ],
    ids=repr,
)
def test_on_plateau(schedule: Schedule, figures: list[float], expected: Any) -> None:
    assert watch(schedule, figures) == pytest.approx(expected)


def test_on_plateau_watches_one_figure_and_an_epoch_without_it_counts_neither_way() -> None:
    schedule = OnPlateau("val_accuracy", "max", gamma=0.5, patience=1)
    state = schedule.init()
    for logs in ({"val_accuracy": 0.9, "val_loss": 1}, {"val_loss": 2}, {"val_loss": 3}):
        schedule.observe(state, logs)
    assert state == {"factor": 1.0, "best": 0.9, "bad": 0}
    assert schedule.watches == WarmUp(steps=3, then=schedule).watches == "val_accuracy"
    assert Cosine().watches is WarmUp(steps=3).watches is None


def test_on_plateau_resumes_from_json() -> None:
    schedule, figures = OnPlateau(gamma=0.3, patience=3), [1, 0.7, 0.9, 0.8, 0.71, 0.6, math.nan, 2, 3]
    whole = watch(schedule, figures)
    for cut in range(len(figures)):
        state = schedule.init()
        first = watch(schedule, figures[:cut], state)
        resumed = json.loads(json.dumps(state, allow_nan=False))
        assert first + watch(schedule, figures[cut:], resumed) == whole


def test_warm_up_multiplies_the_state_of_what_follows() -> None:
    schedule = WarmUp(steps=4, then=OnPlateau(gamma=0.5, patience=1))
    state = schedule.init()
    schedule.observe(state, {"val_loss": 1})
    schedule.observe(state, {"val_loss": 1})
    assert [schedule.factor(step, 1, 10, state) for step in (1, 7)] == [0.25, 0.5]


@pytest.mark.parametrize("schedule", [Constant(), Step(), MultiStep(), Cosine(), Polynomial(), OneCycle()], ids=repr)
def test_functions_of_the_step_remember_nothing(schedule: Schedule) -> None:
    state = schedule.init()
    before = schedule.factor(3, 2, 20, state)
    schedule.observe(state, {"val_loss": 1.0})
    assert state == {}
    assert schedule.factor(3, 2, 20, state) == before


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Step(every=0), r"Step\(every=0\): every must be an integer in \[1, inf\)"),
        (lambda: Step(every=1.5), "every=1.5"),
        (lambda: Step(gamma=0), "gamma must be a number in"),
        (lambda: MultiStep((3, 2)), "each later"),
        (lambda: MultiStep((2, 2)), "each later"),
        (lambda: MultiStep((0, 2)), "from 1 on"),
        (lambda: MultiStep((0.5,)), "from 1 on"),
        (lambda: Cosine(1.5), r"min_factor must be a number in \[0, 1\]"),
        (lambda: Polynomial(power=0), "power must be"),
        (lambda: OneCycle(pct=1.1), "pct must be"),
        (lambda: OneCycle(div=0.5), "div must be"),
        (lambda: OnPlateau(gamma=1.0), r"gamma must be a number in \(0, 1\)"),
        (lambda: OnPlateau(patience=0), "patience must be an integer"),
        (lambda: OnPlateau(mode="best"), 'mode must be "min" or "max"'),
        (lambda: WarmUp(steps=-1), "steps must be an integer"),
        (lambda: WarmUp(steps=5, epochs=1), "give one of the two"),
    ],
)
def test_wrong_settings_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
