"""Driver of the state machine of a rank: steps, counted rings, and waits for peers."""
