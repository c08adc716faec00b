"""An application of a user, with a dashboard in it. The tests run it with uvicorn."""

import os

import redis.asyncio
from starlette.applications import Starlette
from starlette.routing import Mount

from redis_message_queue.dashboard import Dashboard

client = redis.asyncio.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True)
app = Starlette(routes=[Mount("/ops/queues", Dashboard(client, ["orders", "payments"], allow_changes=True))])
