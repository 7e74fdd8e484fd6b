"""Protocol of a live cluster: messages to domain values and back."""
