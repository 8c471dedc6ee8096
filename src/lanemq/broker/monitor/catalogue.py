"""The names of a broker's metrics. docs/reference/metrics.md lists them, and a test compares both with `/metrics`."""

from lanemq.model.figures import Kind, Metric

COUNTER, GAUGE, HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
_OF_GROUP = ("group", "topic")

INFO = Metric(
    "lanemq_broker_info", GAUGE, "1, with version, name and cluster as labels.", ("version", "name", "cluster")
)
STARTED = Metric("lanemq_start_time_seconds", GAUGE, "When the broker started, in seconds since 1970.")
READY = Metric("lanemq_ready", GAUGE, "1 if the broker takes messages, 0 if not; /ready says why.")
READ_ONLY = Metric("lanemq_read_only", GAUGE, "1 after a failed write: sends are refused until a restart.")
PAUSED = Metric(
    "lanemq_sends_paused",
    GAUGE,
    "1 while sends are refused for now: the disk is nearly full, or no descriptor is left.",
)
DURABLE = Metric("lanemq_durable", GAUGE, "1 if messages are acknowledged after fdatasync, 0 with --relaxed.")

MESSAGES_IN = Metric("lanemq_messages_in_total", COUNTER, "Messages stored for producers.", ("topic",))
BYTES_IN = Metric("lanemq_bytes_in_total", COUNTER, "Bytes of the records stored for producers.", ("topic",))
MESSAGES_OUT = Metric("lanemq_messages_out_total", COUNTER, "Messages in answers to pulls.", _OF_GROUP)
BYTES_OUT = Metric("lanemq_bytes_out_total", COUNTER, "Bytes of the records in answers to pulls.", _OF_GROUP)
FAILED_SENDS = Metric("lanemq_failed_sends_total", COUNTER, "Messages accepted that could not be written to disk.")
PULLS = Metric("lanemq_pulls_total", COUNTER, "Pulls answered with messages (found) or without (empty).", ("result",))
SEND_SECONDS = Metric(
    "lanemq_send_seconds", HISTOGRAM, "Time from a send request to its answer, in steps of milliseconds; per message."
)

COMMIT_SECONDS = Metric(
    "lanemq_group_commit_seconds", HISTOGRAM, "Time from the first append of a group to its records on disk; per group."
)
FLUSH_SECONDS = Metric("lanemq_flush_seconds", HISTOGRAM, "Time of write and fdatasync of a group; per group.")
PENDING_BYTES = Metric("lanemq_pending_bytes", GAUGE, "Bytes accepted and not yet on disk.")
LOG_BYTES = Metric("lanemq_log_bytes", GAUGE, "Bytes of messages in the log.")
DISK_FREE = Metric("lanemq_disk_free_bytes", GAUGE, "Free bytes on the disk of the data folder.")
WATERMARK = Metric("lanemq_disk_watermark_bytes", GAUGE, "Sends are refused while fewer bytes than this are free.")
DISK_SIZE = Metric("lanemq_disk_size_bytes", GAUGE, "Size in bytes of the disk of the data folder.")
DAMAGED = Metric("lanemq_damaged_places", GAUGE, "Places of the log that cannot be read; lanemq doctor lists them.")

REBUILD_BYTES = Metric(
    "lanemq_index_rebuild_bytes", GAUGE, "Bytes of the log still to be read to rebuild lost indexes; 0 without rebuild."
)

CONNECTIONS = Metric("lanemq_connections", GAUGE, "Open connections, also those in a TLS handshake.")
CERTIFICATE = Metric(
    "lanemq_certificate_seconds",
    GAUGE,
    "Seconds until the broker's TLS certificate expires, 0 if it has; with TLS only.",
)
REFUSALS = Metric(
    "lanemq_refusals_total", COUNTER, "Requests and connections refused to protect the broker, by reason.", ("reason",)
)
LONG_POLLS = Metric("lanemq_long_polls", GAUGE, "Pulls that wait for a message.")
LOOP_DELAY = Metric(
    "lanemq_loop_delay_seconds", HISTOGRAM, "How late the event loop runs a timer, measured 20 times a second."
)

LEASE_CHANGES = Metric(
    "lanemq_lease_changes_total", COUNTER, "Queues granted to a new owner, released, or expired.", ("change",)
)
STALE = Metric(
    "lanemq_stale_requests_total",
    COUNTER,
    "Requests of members that do not own the queue: of LaneMQ clients refused, of stock clients answered.",
    ("request",),
)
GIVEN_UP = Metric(
    "lanemq_lost_filters_total",
    COUNTER,
    "Topics of groups in which members waited in vain for a lost member with more tags, and skip its messages now.",
)
MEMBERS = Metric("lanemq_group_members", GAUGE, "Connected members of a group.", ("group",))
REPORTED = Metric(
    "lanemq_group_reported",
    GAUGE,
    "1: a program without members, such as a Spark query, reports its offsets.",
    ("group",),
)
NARROWER = Metric(
    "lanemq_narrower_members",
    GAUGE,
    "Members with fewer tags of the topic than others. LaneMQ members get no queue, stock clients skip messages.",
    _OF_GROUP,
)
LAG_MESSAGES = Metric("lanemq_lag_messages", GAUGE, "Messages that a group has not finished.", _OF_GROUP)
LAG_SECONDS = Metric(
    "lanemq_lag_seconds",
    GAUGE,
    "Age of the oldest message above the committed offsets; 0 without lag, no sample while its index is rebuilt.",
    _OF_GROUP,
)
BACKLOG_SECONDS = Metric(
    "lanemq_backlog_seconds",
    GAUGE,
    "How late a group is without keys that are held: the age of the message from which on as many are stored as it has "
    "not finished.",
    _OF_GROUP,
)
UNREAD_DELETED = Metric(
    "lanemq_unread_deleted_total",
    COUNTER,
    "Messages that retention deleted before the group had finished them; of groups that have committed in the topic.",
    _OF_GROUP,
)
LANES = Metric(
    "lanemq_lanes", GAUGE, "Lanes set aside at the broker: held, parked or redriving.", (*_OF_GROUP, "status")
)
LANE_MESSAGES = Metric("lanemq_lane_messages", GAUGE, "Messages in lanes set aside.", (*_OF_GROUP, "status"))
DEAD_LETTERS = Metric(
    "lanemq_dead_letters", GAUGE, "Dead letters of a group that are kept and not discarded.", ("group",)
)
DELAYED = Metric("lanemq_delayed_messages", GAUGE, "Messages that wait for their delivery time.")

CATALOGUE = tuple(value for value in globals().copy().values() if isinstance(value, Metric))
"""All of them, in the order of this file."""
