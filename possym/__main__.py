"""``python -m possym``: the command line, see `possym.command`."""

import sys

from possym.command import main

if __name__ == "__main__":
    sys.exit(main())
