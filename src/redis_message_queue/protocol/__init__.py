"""The rules of the queue, written once: coroutines over a port, finished by either shell."""
