"""Networks that no library brings, one file each: `build`, `forward`, where needed `from_upstream`;
with text also `project_image`, `encode_text` (both L2-normalised), `logit_scale` and `load_tokenizer`."""
