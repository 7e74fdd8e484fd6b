"""Job families that choose actions or items: reinforcement learning and recommenders."""
