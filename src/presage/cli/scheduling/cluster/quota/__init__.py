"""``presage cluster quota``: quotas of users, and their weights for fair share."""
