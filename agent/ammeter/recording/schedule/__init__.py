"""When readings take place: the budget, its buckets, and the steps that are followed or read."""
