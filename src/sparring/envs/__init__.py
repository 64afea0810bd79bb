"""Games of libraries, prompt templates, scripted players."""
