"""The storage engine, and the one door for durable writes."""
