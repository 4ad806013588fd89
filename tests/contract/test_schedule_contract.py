"""What every schedule promises, over the catalogue."""

from __future__ import annotations

import inspect
import json
import math
import pickle

import pytest

from sparkdl.optim import SCHEDULES as REGISTRY
from sparkdl.optim import WarmUp
from tests.catalogue import SCHEDULES, ScheduleCase

each_schedule = pytest.mark.parametrize("case", SCHEDULES, ids=lambda case: case.id)


@each_schedule
@pytest.mark.parametrize(("epochs", "per_epoch"), [(1, 1), (1, 7), (9, 1), (5, 4), (40, 13)])
def test_no_update_has_rate_0(case: ScheduleCase, epochs: int, per_epoch: int) -> None:
    state, total = case.schedule.init(), epochs * per_epoch
    factors = [case.schedule.factor(step, per_epoch, total, state) for step in range(total)]
    assert all(type(f) is float and 0 < f <= 1 for f in factors)


@each_schedule
def test_a_factor_depends_on_its_arguments_alone(case: ScheduleCase) -> None:
    state = case.schedule.init()
    forwards = [case.schedule.factor(step, 4, 20, state) for step in range(25)]
    backwards = [case.schedule.factor(step, 4, 20, state) for step in reversed(range(25))]
    assert forwards == backwards[::-1]
    assert state == case.schedule.init()


@each_schedule
def test_state_is_json_and_what_it_watches_moves_it(case: ScheduleCase) -> None:
    state = case.schedule.init()
    for figure in (0.5, math.nan, 0.7, 0.9, math.inf):
        case.schedule.observe(state, {str(case.schedule.watches): figure, "other": 1.0})
        assert json.loads(json.dumps(state, allow_nan=False)) == state
    assert (state != case.schedule.init()) == (case.schedule.watches is not None)


@each_schedule
def test_pickling(case: ScheduleCase) -> None:
    assert pickle.loads(pickle.dumps(case.schedule)) == case.schedule


def test_the_registry_names_them_all() -> None:
    """Warm-up stands before any of them and has no name of its own."""
    assert {*REGISTRY.values(), WarmUp} == {type(case.schedule) for case in SCHEDULES}
    assert all(name.replace("_", "") == cls.__name__.lower() for name, cls in REGISTRY.items())
    assert not any(inspect.isabstract(cls) for cls in REGISTRY.values())
