"""Commands that simulate and run schedulers."""
