"""Configurations on clusters of many sizes, as the simulator sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from sparkdl.config import Config, LinksConfig, SimulateConfig, links_at
from sparkdl.errors import ConfigError
from sparkdl.ml.local_step import local_step_s, network
from sparkdl.nn import Model
from sparkdl.simulate import Cluster, Report, simulate

__all__ = ["Row", "rows_of", "table"]

DRAWN = 256  # workers
BAR = 20  # characters of an efficiency of 1


class Row(NamedTuple):
    """A configuration on so many workers.

    local_step_s: what a worker's own computation takes, on average. steps_per_s: of each worker, on average;
    samples_per_s: of all. efficiency: samples_per_s to those of as many lone workers, with the whole minibatch each
    where local steps are measured and it is shared out, else with the same local step. sent_mb: 10^6 bytes that a
    worker sends in a step. staleness: see `simulate.Staleness`. waiting: share of its time in which a worker waits for
    others to come.
    """

    name: str
    workers: int
    local_step_s: float
    steps_per_s: float
    samples_per_s: float
    efficiency: float
    sent_mb: float
    staleness_mean: float
    staleness_max: int
    waiting: float


def rows_of(name: str, config: Config, workers: Sequence[int]) -> Iterable[Row]:
    """Simulate the configuration on each number of workers. Errors: ConfigError, DataError before the first row."""
    model = network(config)
    step_s = _step_times(config, model)
    links = _links(config.simulate)
    return (_row(name, config, model, step_s, links, size) for size in workers)


def table(rows: Sequence[Row]) -> str:
    """One line a row, with a bar for its efficiency."""
    heads = ("", "workers", "steps/s", "samples/s", "MB/step", "staleness", "waiting", "efficiency")
    named = len({row.name for row in rows}) > 1
    lines = [heads] + [
        (
            row.name if named else "",
            f"{row.workers:,}",
            _figure(row.steps_per_s),
            _figure(row.samples_per_s),
            _figure(row.sent_mb),
            f"{row.staleness_mean:.3g} / {row.staleness_max}" if row.staleness_max else "0",
            f"{row.waiting:.0%}",
            f"{row.efficiency:.1%}",
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    bars = ["", *("#" * round(BAR * min(1.5, row.efficiency)) for row in rows)]
    texts = []
    for (first, *rest), bar in zip(lines, bars, strict=True):
        cells = [first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(rest, widths[1:], strict=True)), bar]
        texts.append("  ".join(cells[0 if named else 1 :]).rstrip())
    return "\n".join(texts)


def _row(
    name: str, config: Config, model: Model, step_s: Callable[[int], float], links: LinksConfig, workers: int
) -> Row:
    settings, training = config.simulate, config.training.settings
    batch = training.batch_size * training.accumulate
    share = float(settings.rows or batch / workers)
    seconds = step_s(_rows(share, training.accumulate))
    report = _report(config, model, links, workers, share, seconds)
    alone_rows, alone_s = share, seconds
    if not settings.compute_s:
        alone_rows = float(settings.rows or batch)
        alone_s = step_s(_rows(alone_rows, training.accumulate))
    pauses_s = settings.compute.pause * settings.compute.pause_s
    through = report.throughput
    return Row(
        name,
        workers,
        seconds + pauses_s,
        1 / through.step_s,
        through.samples_per_s,
        through.samples_per_s / workers * (alone_s + pauses_s) / alone_rows,
        through.sent_bytes / 1e6,
        report.staleness.mean,
        report.staleness.most,
        max(0.0, through.waiting),
    )


def _report(config: Config, model: Model, links: LinksConfig, workers: int, share: float, seconds: float) -> Report:
    settings, layout = config.simulate, model.layout
    itemsize = np.dtype(config.training.settings.dtype).itemsize
    within = None if links.within is None else links.within.link
    slots = config.optimizer.init(np.zeros(1, np.float32))
    try:
        return simulate(
            config.strategy.simulated(workers),
            Cluster(workers, links.between.link, settings.per_host, within),
            replace(settings.compute, seconds=seconds),
            layout.size * itemsize,
            share,
            settings.steps * _runs(settings, workers),
            settings.seed,
            itemsize,
            layout.trainable_segments,
            sum(a.dtype.kind == "f" for a in slots.values()),
        )
    except ValueError as e:
        raise ConfigError(f"[strategy] cannot be simulated on {workers} workers: {e}") from e


def _runs(settings: SimulateConfig, workers: int) -> int:
    """How often the steps are played where chance takes part: few workers are given as many draws as many."""
    random = settings.compute.distribution != "constant" or settings.compute.pause > 0
    return max(1, DRAWN // workers) if random else 1


def _step_times(config: Config, model: Model) -> Callable[[int], float]:
    """Seconds of a local step by its rows, each measured once if at all."""
    given = config.simulate.compute_s
    return lru_cache(maxsize=None)(lambda rows: given or local_step_s(config, model, rows))


def _rows(share: float, accumulate: int) -> int:
    """Rows of one of the passes that make up a local step."""
    return max(1, round(share / accumulate))


def _links(settings: SimulateConfig) -> LinksConfig:
    return LinksConfig(settings.link) if settings.link_file is None else links_at(settings.link_file)


def _figure(value: float) -> str:
    """Three digits, or a whole number."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
