"""Networks that no library brings: one file each, on current torch, timm and transformers.

Every file has the same doors: `build` (the network with random weights; its tensors carry the names of the
published checkpoint), `encode_image`, and where the published file needs it `from_upstream` (a pure function
over its tensors). An image-text network also has `project_image`, `encode_text`, `logit_scale` and
`load_tokenizer`.
"""
