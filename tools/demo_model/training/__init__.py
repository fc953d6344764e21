"""Training of the demo model on a CPU: two single-threaded processes share the weights and pull work from
queues, so that a busy machine slows them down without making one wait long for the other."""
