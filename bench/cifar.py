"""ResNet-20 on a part of CIFAR-10 against the same network by PyTorch: accuracy, and seconds of training.

python bench/cifar.py [--data DIR] [--rows 10000] [--epochs 10] [--seeds 3] [--json FILE]

Both sides start from the same weights and see the same minibatches of the same augmented pixels (crops of the image
padded by 4, flips), with SGD of momentum 0.9, decay 1e-4 on weight matrices, a linear warm-up and a cosine; forward,
backward, batch normalisation and update are each side's own. Rounding alone soon leads the two apart: what is compared
are means over the seeds. One thread each, each training in a process of its own, in turn. Needs torch: pip install -e
.[bench].
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import multiprocessing
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from _cifar_sides import Run, ours, rival
from report import Row, arguments, report

GOAL = 1.0  # points that the means may differ by
SIDES = {"ours": ours, "torch": rival}


def trained(side: str, run: Run) -> tuple[float, float]:
    """Accuracy and seconds of one training, in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        accuracy, seconds = process.submit(SIDES[side], run).result()
    print(f"{side}, seed {run.seed}: accuracy {accuracy:.2%} in {seconds:,.0f} s", flush=True)
    return accuracy, seconds


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--data", type=Path, default=Path("../shared/data/cifar10"), help="train.parquet, test.parquet")
    parser.add_argument("--rows", type=int, default=10_000, help="of training")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each side")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--warm-up", type=int, default=80, help="updates")
    args = parser.parse_args()
    first = Run(args.data, args.rows, args.epochs, args.batch, args.lr, args.warm_up, 0)
    found = [{side: trained(side, replace(first, seed=seed)) for side in SIDES} for seed in range(args.seeds)]
    rows = [
        Row.more_is_better(f"accuracy, seed {seed}", 100 * both["ours"][0], 100 * both["torch"][0], "%")
        for seed, both in enumerate(found)
    ]
    mean, rival_mean = (100 * statistics.mean(both[side][0] for both in found) for side in SIDES)
    seconds = [statistics.mean(both[side][1] for both in found) for side in SIDES]
    rows.append(Row.more_is_better("accuracy, mean", mean, rival_mean, "%"))
    rows.append(Row.less_is_better("a training", *seconds, "s"))
    report(rows, args.json)
    verdict = "met" if abs(mean - rival_mean) <= GOAL else "missed"
    print(f"means {mean - rival_mean:+.2f} points apart; within {GOAL:g}: {verdict}")


if __name__ == "__main__":
    main()
