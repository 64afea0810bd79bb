"""Where tokens come from: the embedded engine, vLLM, APIs, the server."""
