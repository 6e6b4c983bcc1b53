"""Images in memory to features: one device, several devices, and what is tuned for each."""
