"""What workers that train among themselves owe, over threads: one worker's numbers, one course, one clear end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from catalogue import OPTIMIZERS, OptimizerCase
from reference import blobs, mlp

from sparkdl import nn
from sparkdl.backends import LocalBackend, Peers, Seat, Shards
from sparkdl.comm import TransportOptions
from sparkdl.comm.compress import DGC, Int8
from sparkdl.comm.gossip import Ring
from sparkdl.data import DataSpec
from sparkdl.errors import TrainingError
from sparkdl.ml import CheckpointPlan, TrainedModel, fit
from sparkdl.optim import LAMB, SGD, Adam, Clip, Cosine, OnPlateau, Optimizer, SlowMo
from sparkdl.strategies import AllReduce, Gossip, ModelAveraging, PeerStrategy, Strategy, TreeAggregate
from sparkdl.strategies.peer import Peer, PeerSteps
from sparkdl.train import BestModel, Callback, EarlyStopping, Run, StopAtValue, TimeBudget, Training

SPEC = DataSpec(features=("features",), label="label")
VALID = DataSpec(features=("features",), label="label", valid_fraction=0.25)
HERE = threading.local()  # .rank: that of the thread
WORKERS = [1, 2, 3, 5]


@dataclass(frozen=True)
class Watched(AllReduce):
    """Keeps sight of what each rank holds."""

    peers: tuple[list[Peer], ...] = ([],)

    def steps(self, peer: Peer) -> PeerSteps:
        HERE.rank = peer.comm.rank
        self.peers[0].append(peer)
        return super().steps(peer)


def watched(**settings: Any) -> Watched:
    return Watched(**settings, peers=([],))


def assert_one_course(strategy: Watched, model: TrainedModel, workers: int) -> None:
    """All ranks have made the same steps and hold the same bits, which are the model's."""
    runs = [peer.run for peer in sorted(strategy.peers[0], key=lambda p: p.comm.rank)]
    assert len(runs) == workers
    assert len({(run.epoch, run.step, run.step_in_epoch, run.skipped) for run in runs}) == 1
    for run in runs:
        assert run.params.tobytes() == model.params.tobytes()


@dataclass(frozen=True)
class Does(nn.Layer):
    """The identity; calls `forward`, and in the backward pass `backward`, with the context."""

    forward_does: Callable[[nn.Ctx], None] = lambda ctx: None
    backward_does: Callable[[nn.Ctx], None] = lambda ctx: None

    def out_shape(self, in_shape: nn.Shape) -> nn.Shape:
        return in_shape

    def forward(self, p: Any, x: nn.Array, ctx: nn.Ctx) -> tuple[nn.Array, Any]:
        self.forward_does(ctx)
        return x, None

    def backward(self, p: Any, cache: Any, dy: nn.Array, g: Any, ctx: nn.Ctx) -> nn.Array:
        self.backward_does(ctx)
        return dy


def train(
    table: pa.Table,
    strategy: Strategy,
    workers: int,
    net: nn.Layer | None = None,
    spec: DataSpec = SPEC,
    **settings: Any,
) -> TrainedModel:
    training = Training(**{"epochs": 2, "batch_size": 16, "seed": 3, "dtype": "float64"} | settings.pop("training", {}))
    settings = {"optimizer": SGD(0.1, 0.9), "classes": (0, 1, 2)} | settings
    return fit(table, net or mlp(), spec, training=training, strategy=strategy, workers=workers, **settings)


@pytest.fixture(autouse=True)
def _no_threads_are_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


NORMALISED = nn.Sequential((nn.Dense(8), nn.BatchNorm(), nn.Tanh(), nn.BatchNorm(affine=False), nn.Dense(3)))
# Without weights whose gradient is nothing but rounding, which rules such as AdaGrad would blow up.
PLAIN = nn.Sequential((nn.Dense(8), nn.Tanh(), nn.BatchNorm(), nn.Dense(3)))


class TestSynchronisedBatchNorm:
    """Normalising over all workers' rows is what one worker does."""

    def equal(self, table: pa.Table, workers: int, training: dict[str, Any] | None = None, **settings: Any) -> None:
        strategy = watched(sync_batch_norm=True, **settings)
        model = train(table, strategy, workers, NORMALISED, training=training or {})
        alone = train(table, TreeAggregate(), 1, NORMALISED, training=training or {})
        np.testing.assert_allclose(model.params, alone.params, rtol=0, atol=1e-12)
        np.testing.assert_allclose(model.history["loss"], alone.history["loss"], rtol=1e-12)
        assert_one_course(strategy, model, workers)

    @pytest.mark.parametrize("workers", WORKERS)
    @pytest.mark.parametrize("settings", [{"bucket_mb": 0}, {"bucket_mb": 1e-4}, {"shard_optimizer": True}, {}])
    def test_it_equals_one_worker(self, workers: int, settings: dict[str, Any]) -> None:
        self.equal(blobs(60), workers, **settings)

    @pytest.mark.parametrize("bucket_mb", [0, 1e-4])
    def test_shards_without_rows(self, bucket_mb: float) -> None:
        self.equal(blobs(7), 5, bucket_mb=bucket_mb)

    @pytest.mark.parametrize("bucket_mb", [0, 1e-4])
    def test_accumulation(self, bucket_mb: float) -> None:
        self.equal(blobs(100), 3, {"accumulate": 3}, bucket_mb=bucket_mb)

    def test_without_it_workers_normalise_alone(self) -> None:
        table = blobs(60)
        model, alone = (train(table, AllReduce(), workers, NORMALISED) for workers in (3, 1))
        assert abs(model.params - alone.params).max() > 1e-6


CLIPS = [Clip(), Clip(value=0.02), Clip(norm=0.05), Clip(value=0.02, norm=0.05)]


class TestShardedOptimizer:
    """An optimizer in slices makes the update of a whole one."""

    @pytest.mark.parametrize("case", [pytest.param(c, id=c.id) for c in OPTIMIZERS])
    def test_every_rule(self, case: OptimizerCase) -> None:
        self.equal(case.optimizer, Clip())

    @pytest.mark.parametrize("clip", CLIPS, ids=str)
    @pytest.mark.parametrize("optimizer", [SGD(0.1, 0.9), LAMB(0.01)], ids=["elementwise", "by tensor"])
    def test_clipping(self, optimizer: Optimizer, clip: Clip) -> None:
        self.equal(optimizer, clip)

    def equal(self, optimizer: Optimizer, clip: Clip) -> None:
        table, training, strategy = blobs(48), {"clip": clip}, watched(shard_optimizer=True)
        sliced = train(table, strategy, 3, PLAIN, optimizer=optimizer, training=training)
        whole = train(table, AllReduce(), 3, PLAIN, optimizer=optimizer, training=training)
        np.testing.assert_allclose(sliced.params, whole.params, rtol=1e-9, atol=1e-11)
        assert_one_course(strategy, sliced, 3)

    @pytest.mark.parametrize("workers", WORKERS)
    @pytest.mark.parametrize("optimizer", [Adam(0.01), LAMB(0.01)], ids=["elementwise", "by tensor"])
    def test_weights_and_any_number_of_workers(self, workers: int, optimizer: Any) -> None:
        table = blobs(40, weights=True)
        spec = DataSpec(features=("features",), label="label", weight="weight")
        strategy = watched(shard_optimizer=True)
        model = train(table, strategy, workers, spec=spec, optimizer=optimizer)
        alone = train(table, TreeAggregate(), 1, spec=spec, optimizer=optimizer)
        np.testing.assert_allclose(model.params, alone.params, rtol=0, atol=1e-10)
        assert_one_course(strategy, model, workers)

    def test_more_workers_than_tensors(self) -> None:
        """Some slices are empty."""
        net, optimizer = nn.Sequential((nn.Dense(3, bias=False),)), LAMB(0.01)
        strategy = watched(shard_optimizer=True)
        model = train(blobs(40), strategy, 5, net, optimizer=optimizer)
        np.testing.assert_allclose(
            model.params, train(blobs(40), TreeAggregate(), 1, net, optimizer=optimizer).params, rtol=0, atol=1e-10
        )
        assert_one_course(strategy, model, 5)

    def test_a_single_parameter(self) -> None:
        """The vector is as long as the optimizer's count of steps, which stays whole."""
        table = pa.table({"x": np.linspace(-1, 1, 20), "y": np.linspace(-2, 2, 20)})
        spec, net = DataSpec(features=("x",), label="y"), nn.Dense(1, bias=False)
        settings: dict[str, Any] = {"loss": nn.MSE(), "classes": None, "optimizer": Adam(0.1), "spec": spec}
        model = train(table, AllReduce(shard_optimizer=True), 3, net, **settings)
        np.testing.assert_allclose(
            model.params, train(table, TreeAggregate(), 1, net, **settings).params, rtol=0, atol=1e-10
        )

    def test_updates_that_are_not_finite_are_skipped_alike(self) -> None:
        x = np.array(blobs(48)["features"].to_pylist())
        x[5, 0] = np.inf
        table = blobs(48).set_column(0, "features", [list(x)])
        spec = DataSpec(features=("features",), label="label", handle_invalid="keep")
        strategy = watched(shard_optimizer=True)
        settings: dict[str, Any] = {"spec": spec, "training": {"on_nonfinite": "skip"}, "optimizer": Adam(0.01)}
        model = train(table, strategy, 3, **settings)
        assert_one_course(strategy, model, 3)
        assert strategy.peers[0][0].run.skipped == 2  # one an epoch
        np.testing.assert_allclose(
            model.params, train(table, TreeAggregate(), 1, **settings).params, rtol=0, atol=1e-10
        )


class TestOneCourse:
    @pytest.mark.parametrize("workers", WORKERS)
    @pytest.mark.parametrize("settings", [{}, {"bucket_mb": 1e-4}, {"algorithm": "ring"}, {"algorithm": "star"}])
    def test_all_ranks_hold_the_same_bits(self, workers: int, settings: dict[str, Any]) -> None:
        strategy = watched(**settings)
        net = nn.Sequential((nn.Dense(8), nn.BatchNorm(), nn.Dropout(0.3), nn.ReLU(), nn.Dense(3)))
        model = train(blobs(70), strategy, workers, net, VALID, training={"dtype": "float32", "clip": Clip(norm=1.0)})
        assert_one_course(strategy, model, workers)

    @pytest.mark.parametrize("workers", [2, 3, 5])
    def test_the_bits_do_not_depend_on_the_buckets(self, workers: int) -> None:
        net = nn.Sequential((nn.Dense(40), nn.Tanh(), nn.Dense(30), nn.Tanh(), nn.Dense(3)))
        models = [
            train(blobs(200), AllReduce(bucket_mb=mb), workers, net, training={"dtype": "float32"})
            for mb in (0, 1e-4, 1e-3, 1e-2, None)
        ]
        assert len({model.params.tobytes() for model in models}) == 1
        assert len({tuple(model.history["loss"]) for model in models}) == 1

    def test_a_schedule_that_watches_a_figure_is_one_on_all_ranks(self) -> None:
        strategy = watched()
        schedule = OnPlateau("val_loss", patience=1, gamma=0.5)
        model = train(blobs(80), strategy, 3, None, VALID, schedule=schedule, training={"epochs": 6})
        alone = train(blobs(80), TreeAggregate(), 1, None, VALID, schedule=schedule, training={"epochs": 6})
        assert model.history["lr"] == alone.history["lr"]
        assert_one_course(strategy, model, 3)

    def test_every_step_is_told_once_in_order(self) -> None:
        class Watch(Callback):
            def __init__(self) -> None:
                self.seen: list[tuple[int, int, float]] = []
                self.epochs: list[int] = []

            def step_end(self, run: Run, logs: Any) -> None:
                self.seen.append((run.step, run.step_in_epoch, logs["loss"]))

            def epoch_end(self, run: Run, logs: Any) -> None:
                self.epochs.append(run.step)

        table, told, tree = blobs(80), Watch(), Watch()
        train(table, AllReduce(), 3, callbacks=[told], training={"epochs": 3})
        train(table, TreeAggregate(), 3, callbacks=[tree], training={"epochs": 3})
        assert [seen[:2] for seen in told.seen] == [seen[:2] for seen in tree.seen]
        np.testing.assert_allclose([s[2] for s in told.seen], [s[2] for s in tree.seen], rtol=1e-12)
        assert told.epochs == tree.epochs == [5, 10, 15]


class TestFigures:
    def test_history_tells_the_time_of_every_rank(self) -> None:
        started = time.monotonic()
        model = train(blobs(80), AllReduce(), 3, None, VALID)
        passed = time.monotonic() - started
        assert {"loss", "val_loss", "accuracy", "lr", "seconds", "samples_per_s"} <= set(model.history.names)
        for record in model.history:
            assert all(len(record[name]) == 3 for name in ("data_s", "compute_s", "waiting_s"))
            assert min(record["waiting_s"]) == 0
            assert record["communication_s"] > 0
            assert record["slowest_rank"] in (0, 1, 2)
            spent = np.add(record["data_s"], record["compute_s"]) + record["waiting_s"] + record["communication_s"]
            assert (spent > 0).all()
            assert (spent < passed).all()

    @pytest.mark.parametrize("settings", [{}, {"shard_optimizer": True}, {"bucket_mb": 1e-4}])
    def test_a_slow_rank_is_named_and_the_others_wait(self, settings: dict[str, Any]) -> None:
        def nap(ctx: nn.Ctx) -> None:
            if ctx.train and HERE.rank == 2:
                time.sleep(0.02)

        net = nn.Sequential((Does(nap), *mlp().layers))
        model = train(blobs(64), watched(**settings), 4, net)
        for record in model.history:  # four steps
            assert record["slowest_rank"] == 2
            assert record["compute_s"][2] > 0.08
            assert all(record["waiting_s"][rank] > 0.04 for rank in (0, 1, 3))
            assert record["waiting_s"][2] == 0

    def test_a_profile_adds_up_all_ranks(self) -> None:
        model = train(blobs(80), AllReduce(), 3, training={"profile": True, "epochs": 2})
        assert model.profile is not None
        spans = model.profile.to_dict()
        assert spans["workers > compute > forward/dense_0"]["calls"] == 3 * 2 * 5
        assert all(name in model.profile.table() for name in ("data", "compute", "dense_0", "dense_2"))


class Interrupted(Callback):
    """Ends a fit as Ctrl-C does, after some updates."""

    def __init__(self, after: int) -> None:
        self.after = after

    def step_end(self, run: Run, logs: Any) -> None:
        if run.step >= self.after:
            run.stop("interrupted")


class TestStopping:
    @pytest.mark.parametrize(
        ("callback", "why"),
        [
            (lambda: EarlyStopping("val_loss", patience=1, min_delta=10.0, restore_best=False), "has not improved"),
            (lambda: StopAtValue("val_accuracy", 0.01), "has reached"),
            (lambda: TimeBudget(1e-9), "time budget"),
            (lambda: Interrupted(2), "interrupted"),
        ],
        ids=["early stopping", "value", "time", "interrupt"],
    )
    @pytest.mark.parametrize("settings", [{}, {"shard_optimizer": True}], ids=["plain", "sharded"])
    def test_all_ranks_stop_after_the_same_step(
        self, callback: Callable[[], Callback], why: str, settings: dict[str, Any]
    ) -> None:
        def nap(ctx: nn.Ctx) -> None:
            time.sleep(0.01)

        strategy, net = watched(**settings), nn.Sequential((Does(nap), *mlp().layers))
        model = train(blobs(80), strategy, 3, net, VALID, callbacks=[callback()], training={"epochs": 100})
        assert why in str(model.stop_reason)
        assert len(model.history) < 20
        assert_one_course(strategy, model, 3)

    def test_the_best_weights_come_back(self) -> None:
        table = blobs(80)
        best, alone = (
            train(table, s, w, None, VALID, callbacks=[BestModel()], optimizer=SGD(2.0), training={"epochs": 6})
            for s, w in ((AllReduce(), 3), (TreeAggregate(), 1))
        )
        np.testing.assert_allclose(best.params, alone.params, rtol=0, atol=1e-9)

    @pytest.mark.parametrize("settings", [{}, {"shard_optimizer": True}], ids=["plain", "sharded"])
    @pytest.mark.parametrize(("after", "every_steps"), [(2, 2), (4, None), (6, 3), (7, None)], ids=str)
    def test_a_resumed_run_repeats_the_bits(
        self, tmp_path: Path, after: int, every_steps: int | None, settings: dict[str, Any]
    ) -> None:
        """4 updates an epoch. A wish to stop reaches the ranks with the answer to a state that they send."""
        net = nn.Sequential((nn.Dense(8), nn.BatchNorm(), nn.ReLU(), nn.Dropout(0.3), nn.Dense(3)))
        table, plan = blobs(60), CheckpointPlan(str(tmp_path), every_steps=every_steps)
        given: dict[str, Any] = {"optimizer": Adam(0.01), "schedule": Cosine(), "training": {"epochs": 5}}
        whole = train(table, AllReduce(**settings), 3, net, **given)
        stopped = train(table, AllReduce(**settings), 3, net, checkpoints=plan, callbacks=[Interrupted(after)], **given)
        assert stopped.stop_reason == "interrupted"
        assert len(stopped.history) < 5
        resumed = train(table, AllReduce(**settings), 3, net, checkpoints=plan, **given)
        assert resumed.params.tobytes() == whole.params.tobytes()
        np.testing.assert_allclose(resumed.history["loss"], whole.history["loss"], rtol=1e-13)
        assert resumed.history["step"] == whole.history["step"]

    def test_a_stop_within_an_epoch_is_one(self, tmp_path: Path) -> None:
        """So that the test above does what it says."""
        plan = CheckpointPlan(str(tmp_path), every_steps=2)
        strategy = watched()
        model = train(blobs(60), strategy, 3, checkpoints=plan, callbacks=[Interrupted(2)])
        assert strategy.peers[0][0].run.step == 3
        assert len(model.history) == 0
        assert_one_course(strategy, model, 3)

    def test_a_checkpoint_of_one_mode_is_a_start_for_the_other(self, tmp_path: Path) -> None:
        given: dict[str, Any] = {"optimizer": Adam(0.01), "training": {"epochs": 4}}
        table, plan = blobs(60), CheckpointPlan(str(tmp_path), every_steps=2)
        whole = train(table, TreeAggregate(), 1, **given)
        train(table, AllReduce(shard_optimizer=True), 3, checkpoints=plan, callbacks=[Interrupted(6)], **given)
        resumed = train(table, TreeAggregate(), 2, checkpoints=plan, **given)
        np.testing.assert_allclose(resumed.params, whole.params, rtol=0, atol=1e-10)
        assert len(resumed.history) == 4


class TestFailure:
    @pytest.mark.parametrize("phase", ["first step", "later step", "backward", "validation"])
    @pytest.mark.parametrize("rank", [0, 2])
    def test_an_exception_on_one_rank_is_the_only_one(self, phase: str, rank: int) -> None:
        counts, fell = [0] * 3, []

        def fall(ctx: nn.Ctx) -> None:
            if phase == "validation" and ctx.train:
                return
            counts[HERE.rank] += 1
            if HERE.rank == rank and counts[rank] == (3 if phase in ("later step", "backward") else 1):
                fell.append(time.monotonic())
                raise ValueError("the layer says no")

        layer = Does(backward_does=fall) if phase == "backward" else Does(fall)
        first, *rest = mlp().layers
        net = nn.Sequential((first, layer, *rest))  # not in front, where nobody asks for an input gradient
        with pytest.raises(TrainingError) as caught:
            train(blobs(80), watched(bucket_mb=1e-4), 3, net, VALID, training={"epochs": 5})
        assert time.monotonic() - fell[0] < 2
        assert len(fell) == 1  # no restart
        message, (note,) = str(caught.value), caught.value.__notes__
        assert message.startswith(f"rank {rank} (host ")
        assert message.endswith("failed: ValueError: the layer says no")
        assert f"On rank {rank} (host " in note
        assert "in fall" in note
        assert "ValueError: the layer says no" in note

    @pytest.mark.parametrize(
        ("error", "settings", "every_steps"),
        [
            (OSError("disk"), {}, None),
            (OSError("disk"), {}, 2),
            (OSError("disk"), {"shard_optimizer": True}, None),
            (OSError("disk"), {"shard_optimizer": True}, 2),
            (ConnectionResetError("cut"), {}, None),
            (FileNotFoundError("gone"), {}, None),
            (MemoryError("full"), {}, None),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
    )
    def test_what_need_not_recur_is_tried_again_to_the_same_bits(
        self,
        error: Exception,
        settings: dict[str, Any],
        every_steps: int | None,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        counts = [0] * 3

        def fall(ctx: nn.Ctx) -> None:
            if ctx.train:
                counts[HERE.rank] += 1
                if HERE.rank == 1 and counts[1] == 8:
                    raise error

        net = nn.Sequential((Does(fall), nn.Dense(8), nn.BatchNorm(), nn.Dropout(0.2), nn.Dense(3)))
        given: dict[str, Any] = {"optimizer": Adam(0.01), "training": {"epochs": 3}}
        plan = CheckpointPlan(str(tmp_path), every_steps=every_steps)
        strategy = watched(**settings)
        model = train(blobs(80), strategy, 3, net, checkpoints=plan, **given)
        from_step = {None: 5, 2: 6}[every_steps]  # of the end of epoch 1 (5 steps), or of a checkpoint
        assert f"failed: {type(error).__name__}: {error}; going on from epoch 1, step {from_step} (restart 1 of 3)" in (
            caplog.text
        )
        assert len(strategy.peers[0]) == 6
        counts[1] = 100
        whole = train(blobs(80), watched(**settings), 3, net, **given)
        assert model.params.tobytes() == whole.params.tobytes()
        np.testing.assert_allclose(model.history["loss"], whole.history["loss"], rtol=1e-13)

    @pytest.mark.parametrize("max_restarts", [0, 2])
    def test_restarts_come_to_an_end(self, max_restarts: int) -> None:
        fell = []

        def fall(ctx: nn.Ctx) -> None:
            if HERE.rank == 1:
                fell.append(1)
                raise OSError("no space left")

        with pytest.raises(TrainingError, match=r"rank 1 \(host .*\) failed: OSError: no space left"):
            train(blobs(40), watched(max_restarts=max_restarts), 2, nn.Sequential((Does(fall), nn.Dense(3))))
        assert len(fell) == max_restarts + 1

    @pytest.mark.parametrize("settings", [{}, {"shard_optimizer": True}], ids=["plain", "sharded"])
    def test_gradients_that_are_not_finite_end_as_in_the_tree(self, settings: dict[str, Any]) -> None:
        x = np.array(blobs(48)["features"].to_pylist())
        x[5, 0] = np.nan
        table = blobs(48).set_column(0, "features", [list(x)])
        spec = DataSpec(features=("features",), label="label", handle_invalid="keep")
        messages = []
        for strategy in (TreeAggregate(), AllReduce(**settings)):
            with pytest.raises(TrainingError, match=r"A gradient must be finite; step \d+ \(epoch 1\)") as caught:
                train(table, strategy, 3, spec=spec)
            messages.append(str(caught.value))
        assert messages[0] == messages[1]

    @pytest.mark.parametrize("where", ["begin", "step_end", "epoch_end", "end"])
    def test_a_callback_that_raises_ends_the_fit(self, where: str) -> None:
        class Raises(Callback):
            pass

        def fall(*_: Any) -> None:
            raise ZeroDivisionError("mine")

        callback = Raises()
        setattr(callback, where, fall)
        started = time.monotonic()
        with pytest.raises(ZeroDivisionError, match="mine"):
            train(blobs(80), AllReduce(), 3, callbacks=[callback], training={"epochs": 3})
        assert time.monotonic() - started < 3

    def test_two_fits_at_once(self) -> None:
        alone = train(blobs(80), AllReduce(), 3)
        models: list[TrainedModel] = []
        threads = [threading.Thread(target=lambda: models.append(train(blobs(80), AllReduce(), 3))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [model.params.tobytes() for model in models] == [alone.params.tobytes()] * 2


class OneStandsStill(LocalBackend):
    """Its last rank never says a word, until the launch is cancelled."""

    def run_peers(self, shards: Shards, fn: Callable[[Seat], None]) -> Peers:
        still = threading.Event()

        def run(seat: Seat) -> None:
            if seat.rank + 1 < seat.size:
                fn(seat)
            else:
                still.wait(30)

        peers = super().run_peers(shards, run)
        cancel = peers.cancel
        peers.cancel = lambda: (still.set(), cancel())  # type: ignore[method-assign,assignment,func-returns-value]
        return peers


def test_a_rank_that_stands_still_before_its_first_word_is_missed() -> None:
    strategy = AllReduce(max_restarts=0, network=TransportOptions(timeout_s=1, connect_timeout_s=1))
    started = time.monotonic()
    with pytest.raises(TrainingError, match=r"rank 2 was lost: it has not come within 1 s"):
        train(blobs(40), strategy, 3, master=OneStandsStill(3))
    assert time.monotonic() - started < 20  # threads do not hear the driver while they wait for each other


MEMORIES = [
    pytest.param(AllReduce(compressor=DGC(0.01)), id="dgc"),
    pytest.param(Gossip(Ring(), compressor=Int8(feedback=False)), id="compressed gossip"),
    pytest.param(ModelAveraging(2, SlowMo(), compressor=DGC(0.01)), id="averaging"),
]


@pytest.mark.parametrize("strategy", MEMORIES)
def test_the_driver_takes_what_ranks_remember_beside_the_run(strategy: PeerStrategy) -> None:
    """Weights of 0.8 MB and an optimizer without slots: several memories a rank are most of what rank 0 reports."""
    strategy, net = replace(strategy, max_restarts=0), nn.Sequential((nn.Dense(20_000), nn.Dense(3)))
    model = train(blobs(40), strategy, 4, net, optimizer=SGD(0.001), training={"epochs": 1, "dtype": "float32"})
    assert len(model.history) == 1
