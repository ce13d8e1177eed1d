"""The collector of cycles, for processes that judge a directory.

What a judgement makes it keeps to its end, in trees and not in cycles. The
collector finds nothing there, and with its usual thresholds it looks at all of
it again and again: a third of the time of a directory with many small files.
"""

from __future__ import annotations

import gc

#: New objects before the youngest are looked at; how often each older generation follows.
_THRESHOLDS = (50_000, 20, 100)


def collect_rarely() -> None:
    """Leave what is there alone, and look at what comes less often. For a whole process."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
