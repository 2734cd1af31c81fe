"""gpulayers, with one thing that happens to one rank after one step: `train_program.py RANK STEP WHAT WORDS...`

WHAT: a signal's name, raise (an exception that nobody expects), full (the disk is) or nothing.
"""

import errno
import os
import signal
import sys

from gpulayers.cli import main
from gpulayers.parallel import connect
from gpulayers.training import loop
from gpulayers.training.loop import Trainer
from gpulayers.training.metrics import MetricsFile

rank, step, what, *words = sys.argv[1:]
advance = Trainer._advance


def and_then(self):
    advance(self)
    if (connect().rank, self.step) != (int(rank), int(step)):
        return
    if what.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[what])
    if what == "raise":
        raise RuntimeError("a fault of the program")
    if what == "full":
        MetricsFile.write = full


def full(self, record):
    raise self._error(OSError(errno.ENOSPC, "No space left on device"))


Trainer._advance = and_then
loop.plot_loss = lambda *_, **__: None  # which takes longer than all steps
sys.exit(main(words))
