"""Does the encoder see biology or the hospital? Measures of robustness from stored features."""
