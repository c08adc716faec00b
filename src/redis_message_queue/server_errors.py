"""The error replies of Redis and Valkey, each with a decision: whether the same command may succeed a moment later."""

from __future__ import annotations

import re
from typing import NamedTuple


class Decision(NamedTuple):
    """What is decided about one kind of error reply."""

    transient: bool
    reason: str


# By the word that such a reply begins with. What is not here is not transient.
DECISIONS: dict[str, Decision] = {
    # The state of the server, which passes
    "BUSY": Decision(True, "a script of somebody else runs for too long; it ends, or an operator kills it"),
    "LOADING": Decision(True, "the server has just started and reads its data"),
    "MISCONF": Decision(True, "snapshots or the append-only file cannot be written, and writes are refused until then"),
    "NOREPLICAS": Decision(True, "fewer replicas are connected than `min-replicas-to-write` asks for"),
    "NOSCRIPT": Decision(True, "the server has forgotten the script; it is sent again with its text"),
    # A failover, or a cluster that changes
    "READONLY": Decision(True, "the server has become a replica; whoever connects again finds the primary"),
    "MASTERDOWN": Decision(True, "a replica has lost its primary and serves no old data"),
    "REDIRECT": Decision(True, "the primary is elsewhere since a failover"),
    "UNBLOCKED": Decision(True, "a wait was ended because the server has become a replica"),
    "CLUSTERDOWN": Decision(True, "the cluster has lost a part of its slots, and elects somebody to serve them"),
    "TRYAGAIN": Decision(True, "the keys of the call are on their way to another node"),
    "INPROG": Decision(True, "a failover is in progress"),
    "NOGOODSLAVE": Decision(True, "Sentinel has no replica yet that it could promote"),
    "NOMASTERLINK": Decision(True, "a replica is not connected to its primary"),
    # A client of the wrong kind
    "MOVED": Decision(False, "the slot is on another node: cluster clients follow, a plain one needs to be replaced"),
    "ASK": Decision(False, "the key is on another node: cluster clients follow, a plain one needs to be replaced"),
    "CROSSSLOT": Decision(False, "the keys of the queue are in different slots: the name needs a hash tag"),
    "NOPROTO": Decision(False, "the server does not speak the protocol version that the client asks for"),
    # Credentials and rights
    "NOAUTH": Decision(False, "the server wants a password"),
    "WRONGPASS": Decision(False, "the user or the password is wrong"),
    "NOPERM": Decision(False, "the user may not run the command or touch the key"),
    "DENIED": Decision(False, "protected mode: the server takes connections from its own machine only"),
    # What is asked for or what is stored is wrong
    "ERR": Decision(False, "the command or a script is refused; the text says why"),
    "WRONGTYPE": Decision(False, "a key of the queue holds something else"),
    "OOM": Decision(False, "the memory is full until consumers or an operator make room: publishing must slow down"),
    "EXECABORT": Decision(False, "a transaction was refused because of a command in it"),
    "BUSYKEY": Decision(False, "the key exists already"),
    "BUSYGROUP": Decision(False, "the consumer group exists already"),
    "NOGROUP": Decision(False, "the consumer group does not exist"),
    "UNKILLABLE": Decision(False, "a script that has written cannot be killed"),
    "NOTBUSY": Decision(False, "there is no script to kill"),
    "IOERR": Decision(False, "a key could not be moved to another server"),
}

# In texts that begin with ERR, or with nothing: what passes all the same.
TRANSIENT_PHRASES: dict[str, str] = {
    "max number of clients reached": "the server has as many connections as it takes",
    "Script killed by user": "an operator has killed the script, which had not written anything",
    "non local key": "the keys of a script are on their way to another node",
    "TTL exhausted": "the cluster client was sent from node to node; the slots have moved on since",
    "cannot be used with replica instances": "WAIT or WAITAOF met a replica while a failover is under way",
    "Redis Cluster cannot be connected": "the cluster client found none of its nodes",
}

_TRANSIENT = frozenset(word for word, decision in DECISIONS.items() if decision.transient)
# Redis 6.2 puts the reply that a command in a script got behind its own words.
_IN_A_SCRIPT = re.compile(rf"[\s:]-?({'|'.join(sorted(_TRANSIENT))})(?=\s)")


def is_transient(text: str) -> bool:
    """Whether an error reply tells of something that passes by itself."""
    if text.partition(" ")[0].lstrip("-") in _TRANSIENT:
        return True
    if "script" in text and _IN_A_SCRIPT.search(text) is not None:
        return True
    return any(phrase in text for phrase in TRANSIENT_PHRASES)
