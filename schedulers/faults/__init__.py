"""Node failures and repairs from files, traces and distributions."""
