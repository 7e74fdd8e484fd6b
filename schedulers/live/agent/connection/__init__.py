"""Connection of an agent to its controller: cluster membership, lease and reports."""
