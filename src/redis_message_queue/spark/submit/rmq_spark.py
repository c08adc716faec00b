"""Runs `rmq spark` under spark-submit: spark-submit "$(rmq spark entry-point)" archive orders s3://lake/queues.

It is alone in its directory, which Python searches first.
"""

import sys

from redis_message_queue.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["spark", *sys.argv[1:]]))
