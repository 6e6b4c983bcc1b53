"""The ROI track: frozen image encoders judged on tissue-region classification."""
