"""`rmq demo`: duplicate orders, a killed consumer, a poison message, and the proof that nothing was lost."""
