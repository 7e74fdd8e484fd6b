from presage.schedulers.simulator.simulate import simulate as simulate

__version__: str
