"""The largest batch that really trains, given something that runs a size.

=============  =========================================================
``search``     which size to run next, and when to stop: ``find_largest``
``judge``      what a run says: fits, or why it does not
``line``       memory as a line through sizes that ran
``tried``      the plain records
=============  =========================================================
"""

from __future__ import annotations

from autotune.batch_size.search import find_largest
from autotune.batch_size.tried import LargestBatch, SizeTried

__all__ = ["LargestBatch", "SizeTried", "find_largest"]
