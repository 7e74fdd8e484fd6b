"""Time-division sharing of switches that compute: in-network computing (INC) of AllReduce."""
