"""HTTP/1.1 server with limits on connections, time and memory.

The extender of kube-scheduler, the cluster pages and the metrics endpoint use it.
"""
