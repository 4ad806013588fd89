from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

from sparkdl.nn import Ctx, Dense, Model, ReLU, Sequential, SoftmaxCrossEntropy
from sparkdl.train import profile as module
from sparkdl.train.profile import Profile


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands still but for what a test adds to it."""
    now = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    return now


def worker(clock: list[float]) -> Profile:
    profile = Profile()
    for _ in range(2):
        with profile.span("data"):
            clock[0] += 1
        with profile.span("compute"):
            for name, seconds in (("forward/dense_0", 2), ("forward/relu_1", 1), ("loss", 1), ("backward/dense_0", 4)):
                with profile.span(name):
                    clock[0] += seconds
            clock[0] += 1
    return profile


def test_spans_add_seconds_and_calls(clock: list[float]) -> None:
    spans = worker(clock).to_dict()
    assert spans["workers > data"] == {"seconds": 2, "calls": 2}
    assert spans["workers > compute"] == {"seconds": 18, "calls": 2}
    assert spans["workers > compute > backward/dense_0"] == {"seconds": 8, "calls": 2}
    json.dumps(spans)


def test_profiles_of_workers_merge(clock: list[float]) -> None:
    driver, first, second = Profile("driver"), worker(clock), pickle.loads(pickle.dumps(worker(clock)))
    with driver.span("job"):
        clock[0] += 30
    driver.merge(first)
    driver.merge(second)
    spans = driver.to_dict()
    assert spans["driver > job"] == {"seconds": 30, "calls": 1}
    assert spans["workers > compute"] == {"seconds": 36, "calls": 4}
    assert first.to_dict()["workers > compute"]["calls"] == 2


def test_a_span_ends_when_its_work_fails(clock: list[float]) -> None:
    profile = Profile()

    def fail() -> None:
        with profile.span("data"):
            clock[0] += 1
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    with profile.span("compute"):
        pass
    assert profile.to_dict()["workers > data"] == {"seconds": 1, "calls": 1}
    assert "workers > compute" in profile.to_dict()


def test_table(clock: list[float]) -> None:
    profile = Profile("driver")
    with profile.span("job"):
        with profile.span("broadcast"):
            clock[0] += 1
        clock[0] += 2
    with profile.span("update"):
        clock[0] += 1
    profile.merge(worker(clock))
    phases, layers = (part.splitlines() for part in profile.table().split("\n\n"))
    assert [line.split() for line in phases] == [
        ["phase", "seconds", "share", "calls"],
        ["-" * len(phases[1])],
        ["driver", "4.000"],
        ["job", "3.000", "75.0", "%", "1"],
        ["broadcast", "1.000", "25.0", "%", "1"],
        ["update", "1.000", "25.0", "%", "1"],
        ["workers", "20.000"],
        ["compute", "18.000", "90.0", "%", "2"],
        ["loss", "2.000", "10.0", "%", "2"],
        ["data", "2.000", "10.0", "%", "2"],
    ]
    assert [line.split() for line in layers[2:]] == [
        ["dense_0", "4.000", "28.6", "%", "8.000", "57.1", "%"],
        ["relu_1", "2.000", "14.3", "%", "0.000", "0.0", "%"],
    ]
    assert phases[4].startswith("    broadcast")


def test_an_empty_profile() -> None:
    assert Profile().table() == "profile: nothing was timed"
    assert Profile().to_dict() == {}


def test_a_pass_is_timed_layer_by_layer() -> None:
    model = Model(Sequential([Dense(4), ReLU(), Dense(2)]), SoftmaxCrossEntropy(), (3,))
    rng, profile = np.random.default_rng(0), Profile()
    params = model.init(rng)
    x, y = rng.standard_normal((8, 3)), rng.integers(0, 2, 8)
    model.accumulate(params, np.zeros_like(params), x, y, None, Ctx(train=True, rng=rng, clock=profile))
    names = {f"{way}/{layer}" for way in ("forward", "backward") for layer in ("dense_0", "relu_1", "dense_2")}
    assert set(profile.to_dict()) == {f"workers > {name}" for name in names | {"loss"}}
