"""What keeps a topic or a group from being deleted, or a topic from being created.

A deletion that a decided commit stands against would not undo the commit: every
later start would find that it can neither carry it out nor leave it.

Source: consumer-metadata.md sections 7.5 and 7.7; journal.md section 4.
"""

from __future__ import annotations

from collections.abc import Collection

from cursus.formats.consumer_metadata import topic_matches
from cursus.storage.consumer_log import ConsumerLog
from cursus.storage.errors import StoreError
from cursus.storage.journal_store import JournalStore


def require_unreferenced(consumers: ConsumerLog, topic: str) -> None:
    """A group of an earlier topic of this name would be taken over (section 7.5).

    Raises ``StoreError`` ``topic_lifecycle_cleanup_pending``.
    """
    named = consumers.references(topic)
    if named:
        raise StoreError(
            "topic_lifecycle_cleanup_pending",
            f'topic "{topic}" lifecycle cleanup is pending for consumer group "{named[0]}"',
            path=topic,
        )


def require_no_transaction(journal: JournalStore, consumers: ConsumerLog, topic: str) -> None:
    """No unfinished transaction may need the topic, or a group that goes with it.

    Raises ``StoreError`` ``topic_referenced``, and what settling the journal raises.
    """
    journal.settle()
    blockers = journal.blockers(topic)
    if blockers:
        raise StoreError(
            "topic_referenced",
            f'transaction "{blockers[0]}" is unfinished and refers to topic "{topic}"',
            path=topic,
        )
    # Any group that may have an offset of it by the time it is gone; others commit meanwhile.
    live = tuple(consumers.groups.values())
    groups = {item.name for item in live if topic_matches(item.topic, topic)}
    require_no_pledge(journal, "topic_referenced", topic, groups.union(consumers.references(topic)))


def require_no_pledge(journal: JournalStore, code: str, path: str, groups: Collection[str]) -> None:
    """No decided commit may have an offset for one of ``groups``: it is for this life of it.

    Raises ``StoreError`` ``code``, and what settling the journal raises.
    """
    journal.settle()
    pledged = journal.pledged(groups)
    if pledged:
        raise StoreError(
            code,
            f'the commit of transaction "{pledged[0]}" is decided, not finished, and has an '
            "offset for a group that would be deleted",
            path=path,
            transactional_id=pledged[0],
        )
