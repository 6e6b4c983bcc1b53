"""Messages of a conversation and their parts: text, pictures, calls of tools, their results, reasoning."""
