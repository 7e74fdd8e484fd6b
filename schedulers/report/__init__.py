"""HTML report that compares simulations of one trace under several policies."""
