"""HTTP/1.1 server with bounds on connections, time and memory: extender, cluster pages, metrics."""
