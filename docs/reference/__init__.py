"""The makers of the reference pages, each beside its page."""
