"""`python -m bench train|ops|gpu|compare ...`."""

import sys

from bench import compare, gpu, ops, train

COMMANDS = {"train": train.main, "ops": ops.main, "gpu": gpu.main, "compare": compare.main}

if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
    sys.exit(f"usage: python -m bench {{{'|'.join(COMMANDS)}}} ...")
COMMANDS[sys.argv[1]](sys.argv[2:])
