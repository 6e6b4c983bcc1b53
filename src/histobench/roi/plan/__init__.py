"""The run plan: datasets x encoders x tasks x presets, done once, resumed at will."""
