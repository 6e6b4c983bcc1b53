"""Where encyclopedia articles come from: the live site, a tape of recorded answers, or a folder."""
