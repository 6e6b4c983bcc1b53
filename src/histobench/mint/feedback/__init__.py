"""Expert feedback: who gives it, knowing what, in which form, and whether it gives the answer away."""
