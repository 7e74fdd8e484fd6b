"""Bridge: answers job_submit.lua with the requests of a submitted job, by its forecast."""
