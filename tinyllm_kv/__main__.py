"""``python -m tinyllm_kv``: the same as the console script ``tinyllm-kv``."""

import sys

from .cli import main

sys.exit(main())
