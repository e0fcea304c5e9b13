"""``python -m mkviz``: the same command as ``mkviz``."""

import sys

from mkviz.cli import main

sys.exit(main())
