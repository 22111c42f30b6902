"""`python -m paper`."""

import sys

from paper.commands import main

sys.exit(main())
