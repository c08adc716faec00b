"""The error replies of Redis and Valkey, and whether the same command may succeed a moment later."""

from __future__ import annotations

import re
from typing import NamedTuple


class Decision(NamedTuple):
    """Whether to retry after one kind of error reply, and why."""

    transient: bool
    reason: str


# By the first word of the reply. A reply that is not listed here is not transient.
DECISIONS: dict[str, Decision] = {
    # The state of the server, which passes
    "BUSY": Decision(True, "Another client's script runs for too long. It ends, or an operator kills it."),
    "LOADING": Decision(True, "The server has just started and is loading its data."),
    "MISCONF": Decision(
        True, "The server cannot write its snapshot or append-only file, and refuses writes until it can."
    ),
    "NOREPLICAS": Decision(True, "Fewer replicas are connected than `min-replicas-to-write` requires."),
    "NOSCRIPT": Decision(True, "The server has lost the script. The next attempt sends its text again."),
    # A failover, or a cluster that changes
    "READONLY": Decision(True, "The server has become a replica. A new connection finds the primary."),
    "MASTERDOWN": Decision(True, "A replica has lost its primary and does not serve old data."),
    "REDIRECT": Decision(True, "The primary has moved after a failover."),
    "UNBLOCKED": Decision(True, "A blocking command ended because the server has become a replica."),
    "CLUSTERDOWN": Decision(True, "Some slots of the cluster have no node until it elects one."),
    "TRYAGAIN": Decision(True, "The keys of the call are being moved to another node."),
    "INPROG": Decision(True, "A failover is in progress."),
    "NOGOODSLAVE": Decision(True, "Sentinel has no replica yet that it can promote."),
    "NOMASTERLINK": Decision(True, "A replica is not connected to its primary."),
    # A client of the wrong kind
    "MOVED": Decision(
        False, "The slot is on another node. Cluster clients follow; a plain client cannot: use `RedisCluster`."
    ),
    "ASK": Decision(
        False, "The key is on another node. Cluster clients follow; a plain client cannot: use `RedisCluster`."
    ),
    "CROSSSLOT": Decision(False, "The keys of the queue are in different slots. Give its name a hash tag."),
    "NOPROTO": Decision(False, "The server does not support the protocol version that the client asks for."),
    # Credentials and permissions
    "NOAUTH": Decision(False, "The server requires a password."),
    "WRONGPASS": Decision(False, "The user name or the password is wrong."),
    "NOPERM": Decision(False, "The user is not allowed to run the command or to use the key."),
    "DENIED": Decision(False, "Protected mode: the server accepts connections from its own machine only."),
    # The request or the stored data is wrong
    "ERR": Decision(False, "The server refused the command or the script. The text says why."),
    "WRONGTYPE": Decision(False, "A key of the queue holds a value of another type."),
    "OOM": Decision(
        False, "The server is out of memory until consumers or an operator make room. Publish more slowly."
    ),
    "EXECABORT": Decision(False, "The server refused a transaction because of a command in it."),
    "BUSYKEY": Decision(False, "The key exists already."),
    "BUSYGROUP": Decision(False, "The consumer group exists already."),
    "NOGROUP": Decision(False, "The consumer group does not exist."),
    "UNKILLABLE": Decision(False, "A script that has written data cannot be killed."),
    "NOTBUSY": Decision(False, "There is no script to kill."),
    "IOERR": Decision(False, "A key could not be moved to another server."),
}

# Replies that begin with ERR, or have no code, and are transient nevertheless.
TRANSIENT_PHRASES: dict[str, str] = {
    "max number of clients reached": "The server has reached its limit of connections.",
    "Script killed by user": "An operator killed the script before it wrote anything.",
    "non local key": "The keys of a script are being moved to another node.",
    "TTL exhausted": "The cluster client was redirected too often while slots were moving.",
    "cannot be used with replica instances": "WAIT or WAITAOF reached a replica during a failover.",
    "Redis Cluster cannot be connected": "The cluster client reached none of its nodes.",
}

_TRANSIENT = frozenset(word for word, decision in DECISIONS.items() if decision.transient)
# Redis 6.2 puts its own text before the reply to a command in a script.
_IN_A_SCRIPT = re.compile(rf"[\s:]-?({'|'.join(sorted(_TRANSIENT))})(?=\s)")


def is_transient(text: str) -> bool:
    """Whether the cause of an error reply passes by itself."""
    if text.partition(" ")[0].lstrip("-") in _TRANSIENT:
        return True
    if "script" in text and _IN_A_SCRIPT.search(text) is not None:
        return True
    return any(phrase in text for phrase in TRANSIENT_PHRASES)
