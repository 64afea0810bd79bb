"""The services of a run on a cluster: plain classes that know nothing of Ray."""
