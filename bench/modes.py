"""What may be had for less consistency: MNIST in every mode, with the same number of samples.

python bench/modes.py [--data DIR] [--setting a|b|ab] [--modes NAME ...] [--rows N] [--epochs N] [--workers P]
                      [--json FILE] [--plot FILE.png]

Two settings. (a) equal workers, links of loopback. (b) links of 100 Mbit/s between network namespaces (needs root and
`ip`), and the last worker takes three times as long for a minibatch as the others; fewer modes, none that goes through
the driver or shares memory.

The minibatches' times are made: each gradient sleeps until it has lasted --pace seconds (three times that on the slow
worker, P times that for serial, which has all rows), half before the pass and half after it. So P workers need no P
cores, and neither the number of cores nor what else runs decides who is fast, as long as the passes themselves take
less. Messages, their compression and the updates take the time that they take.

All modes: an MLP 784-256-128-10 of 235 thousand parameters (0.94 MB in float32), global minibatches of 512, SGD with
momentum 0.9 at rate 0.2, 40 updates of warm-up, then a cosine. What did not train well with that was tuned by hand, a
few trials each, and stands in the columns lr and momentum: hogwild, whose workers each make full steps, has a quarter
of the rate; servers that apply gradients as they come make P updates for one of allreduce's, and need less momentum, as
does one bit a number; DGC has momentum of its own. Outer momentum is 0.5, for there are few meetings.

seconds: from the first update that the driver hears of to the last epoch's end, validation and the state that the
driver gets with each epoch included, starting the processes not. to target: until the validation accuracy, linear
between epochs, reaches --target. MB: what a worker has sent to others, mean. apart: staleness, mean and most, in
updates of others; or the consensus distance, the largest of the epochs'.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"


def arguments() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/mnist"), help="train.parquet, test.parquet")
    parser.add_argument("--setting", choices=["a", "b", "ab"], default="ab")
    parser.add_argument("--modes", nargs="*", metavar="NAME", help="those whose names hold one of these")
    parser.add_argument("--rows", type=int, default=56_000, help="of training")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--pace", type=float, default=0.03, help="seconds of a gradient")
    parser.add_argument("--target", type=float, default=0.965, help="validation accuracy")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="a PNG of setting (b); needs the extra plot")
    parser.add_argument("--from-json", type=Path, nargs="+", metavar="FILE", help="measure nothing, report these")
    return parser.parse_args()


if __name__ == "__main__":
    # Imported here: each worker's process runs this file again under another name, and needs none of it.
    from _mode_main import run

    sys.exit(run(arguments()))
