"""rmq stats: how many messages are where, once or again and again."""
