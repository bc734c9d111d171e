"""Memory handed out in these tests is poisoned: an element nobody wrote is NaN."""

import os

os.environ.setdefault("RUDA_POISON", "1")
os.environ.setdefault("RUDA_TARGET", "host")
