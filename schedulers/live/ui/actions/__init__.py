"""Actions of the page on jobs and nodes, with the rules of their protection."""
