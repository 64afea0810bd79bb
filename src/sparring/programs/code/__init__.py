"""Programs that a model wrote: a sandbox that runs them, tasks that they solve, and questions about them."""
