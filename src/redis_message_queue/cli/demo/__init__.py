"""The demo: orders that come twice, a consumer that is killed, a poisonous order, and the proof that all is well."""
