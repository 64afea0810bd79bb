"""The Ray runtime: plain services, and the Ray actors that run them."""
