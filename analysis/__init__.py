"""Records to tables, pictures and the report; needs no engine."""

import os

# The products here are small: several threads wait for each other longer than one computes, many times so on a busy machine.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
