"""The controller of a live cluster: takes jobs, chooses nodes, and loses nothing."""
