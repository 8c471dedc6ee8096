"""The tables of `state.db`. A change here needs a new `VERSION`: an older broker must not misread a newer file."""

VERSION = 3

_PARKED = (
    "CREATE TABLE parked_lanes (grp TEXT, topic TEXT, queue_id INTEGER, key TEXT, reason TEXT NOT NULL,"
    " attempts INTEGER NOT NULL, since INTEGER NOT NULL, status TEXT NOT NULL, through INTEGER NOT NULL,"
    " PRIMARY KEY (grp, topic, queue_id, key)) WITHOUT ROWID",
    "CREATE TABLE parked_messages (grp TEXT, topic TEXT, queue_id INTEGER, key TEXT, value INTEGER,"
    " record BLOB NOT NULL, PRIMARY KEY (grp, topic, queue_id, key, value))",
)

SCHEMA = (
    "CREATE TABLE topics (name TEXT PRIMARY KEY, settings TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE groups (name TEXT PRIMARY KEY, settings TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE offsets (grp TEXT, topic TEXT, queue_id INTEGER, value INTEGER NOT NULL,"
    " reset_pending INTEGER NOT NULL, gaps TEXT NOT NULL DEFAULT '',"
    " PRIMARY KEY (grp, topic, queue_id)) WITHOUT ROWID",
    "CREATE TABLE leases (grp TEXT, topic TEXT, broker TEXT, queue_id INTEGER, owner TEXT NOT NULL,"
    " epoch INTEGER NOT NULL, lease_ms INTEGER NOT NULL, stock INTEGER NOT NULL,"
    " PRIMARY KEY (grp, topic, broker, queue_id)) WITHOUT ROWID",
    "CREATE TABLE producers (topic TEXT, queue_id INTEGER, producer TEXT, state TEXT NOT NULL,"
    " PRIMARY KEY (topic, queue_id, producer)) WITHOUT ROWID",
    "CREATE TABLE queues (number INTEGER PRIMARY KEY, topic TEXT NOT NULL, queue_id INTEGER NOT NULL,"
    " first INTEGER NOT NULL, end INTEGER NOT NULL, UNIQUE (topic, queue_id))",
    "CREATE TABLE damage (position INTEGER PRIMARY KEY, length INTEGER NOT NULL, reason TEXT NOT NULL)",
    "CREATE TABLE dropped (topic TEXT PRIMARY KEY, position INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE checkpoint (id INTEGER PRIMARY KEY CHECK (id = 0), position INTEGER NOT NULL,"
    " last_store_time INTEGER NOT NULL, clean INTEGER NOT NULL)",
    "CREATE TABLE kv (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    *_PARKED,
)

UPGRADES = {
    1: ("ALTER TABLE offsets ADD COLUMN gaps TEXT NOT NULL DEFAULT ''",),
    2: _PARKED,
}
"""Version of a file → what makes it the next version."""
