"""Which groups are furthest behind? SQLAlchemy Core over an index.

python docs/examples/lag.py INDEX.db
"""

from __future__ import annotations

import sys

from sqlalchemy import func, select

from inspect_db import models
from inspect_db.values import from_name


def furthest_behind(path: str, limit: int = 5) -> list[tuple[str, int]]:
    """Groups and their lag over all partitions, largest first."""
    lag = models.tables["consumer_lag"]
    total = func.sum(lag.c.lag).label("total")
    question = (
        select(lag.c.group_name, total)
        .where(lag.c.place == "in_log")
        .group_by(lag.c.group_name)
        .order_by(total.desc(), lag.c.group_name)
        .limit(limit)
    )
    with models.engine(path).connect() as connection:
        return [(from_name(name), int(behind)) for name, behind in connection.execute(question)]


if __name__ == "__main__":
    for group, behind in furthest_behind(sys.argv[1]):
        print(f"{behind:>10,}  {group}")
