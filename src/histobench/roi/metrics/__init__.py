"""Classification and calibration metrics, vectorised over episodes and resamples."""
