"""Core of every scheduler: jobs, cluster, ledger, queue, and the policy contract."""
