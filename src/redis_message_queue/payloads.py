"""Codecs: how objects become payloads, and payloads objects again."""

from redis_message_queue.stored.codecs import BytesCodec, Codec, DataclassCodec, JsonCodec, MsgspecCodec, PydanticCodec

__all__ = [
    "BytesCodec",
    "Codec",
    "DataclassCodec",
    "JsonCodec",
    "MsgspecCodec",
    "PydanticCodec",
]
