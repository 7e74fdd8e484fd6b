"""The live cluster's controller: it promises, chooses nodes, and forgets nothing that it said."""
