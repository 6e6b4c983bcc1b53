"""What notebook users call; `import histobench as hb` gives its names."""
