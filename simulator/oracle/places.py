"""Where a message can be."""

WAITING, DELAYED, PROCESSING, BATCH = "waiting", "delayed", "processing", "batch"
COMPLETED, FAILED, DEAD, GONE, NOWHERE = "completed", "failed", "dead letters", "gone", "nowhere"
TERMINAL = (COMPLETED, FAILED, DEAD)
