"""A live page of a cluster, for operators: it reads and changes nothing."""
