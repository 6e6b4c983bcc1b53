"""Code that runs inside the sandbox. It uses the standard library and never imports the host package."""
