"""The Ray runtime: plain services, and the actors that Ray makes of them."""
