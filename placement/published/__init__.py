"""The placement policy as published: networks for one cluster, replay, rewards (L1 to L12)."""
