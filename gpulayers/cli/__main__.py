import sys

from gpulayers.cli import main

sys.exit(main())
