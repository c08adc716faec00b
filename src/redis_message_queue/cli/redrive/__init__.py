"""rmq redrive: dead letters become messages again."""
