"""`python -m pelton` is the `pelton` command."""

import sys

from pelton.cli.main import main

sys.exit(main())
