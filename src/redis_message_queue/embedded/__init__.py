"""A private Redis or Valkey server that ends with the program that started it."""

from redis_message_queue.embedded.embedded_redis import EmbeddedRedis
from redis_message_queue.embedded.server_binary import ServerBinary, find_server
from redis_message_queue.values.errors import EmbeddedServerError

__all__ = [
    "EmbeddedRedis",
    "EmbeddedServerError",
    "ServerBinary",
    "find_server",
]
